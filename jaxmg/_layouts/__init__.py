"""The devices that hold a matrix, and how they hold it."""
