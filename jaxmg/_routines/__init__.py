"""The routines: each module has a record and the public functions of one of them."""
