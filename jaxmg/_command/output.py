"""Prints the lines of `python -m jaxmg`, each as soon as it is known."""


def section(title):
    print(f"\n{title}", flush=True)


def fact(name, value):
    print(f"  {name}: {value}", flush=True)
