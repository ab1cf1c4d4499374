"""Parts that concern all routines: their table, plans, counts of operations, exports, and older
forms."""
