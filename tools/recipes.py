"""Checks conda recipes: rattler-build parses and renders them, with variants.yaml of their
folder."""

import pathlib

import rattler_build


def render(files):
    """Prints the errors of these recipes; returns whether there are any."""
    failed = False
    for file in map(pathlib.Path, files):
        variants = file.with_name("variants.yaml")
        try:
            recipe = rattler_build.Stage0Recipe.from_file(file)
            config = rattler_build.VariantConfig.from_file(variants) if variants.exists() else None
            recipe.render(config)
        except rattler_build.RattlerBuildError as error:
            print(f"{file}: {error}")
            failed = True
    return failed
