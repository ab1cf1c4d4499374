"""What ``python -m jaxmg`` prints and measures."""
