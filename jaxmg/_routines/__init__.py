"""What concerns all routines: their table, plans, counts of operations, exports, and
older forms."""
