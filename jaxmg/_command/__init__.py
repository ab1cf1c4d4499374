"""The information and the measurements that ``python -m jaxmg`` prints."""
