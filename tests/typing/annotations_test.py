"""Types stand in the public functions: all of them, in overloads that fit the function, and with
the names that it accepts.

What type checkers infer from them is in user.py; that what is inferred comes out, in user_test.py.
"""

import inspect
import re
import types
import typing

import pytest

import jaxmg
from jaxmg import _types

MODULES = {"jaxmg": jaxmg, "jaxmg.linalg": jaxmg.linalg}
CLASSES = (jaxmg.CholeskyFactor, jaxmg.RefinedFactor, jaxmg.Plan)


def public_functions():
    """(name, function) of all public functions and methods."""
    for prefix, module in MODULES.items():
        for name in module.__all__:
            if inspect.isfunction(value := getattr(module, name)):
                yield f"{prefix}.{name}", inspect.unwrap(value)
    for kind in CLASSES:
        for name, value in vars(kind).items():
            value = value.fget if isinstance(value, property) else value
            value = value.__func__ if isinstance(value, classmethod) else value
            if not name.startswith("_") and inspect.isfunction(value):
                yield f"jaxmg.{kind.__name__}.{name}", inspect.unwrap(value)


FUNCTIONS = dict(public_functions())
# By the argument that decides what they return.
OVERLOADED = {
    "jaxmg.potrs": "return_status",
    "jaxmg.potri": "return_status",
    "jaxmg.syevd": "return_eigenvectors",
    "jaxmg.sygvd": "return_eigenvectors",
    "jaxmg.eigh": "return_status",
    "jaxmg.eigvalsh": "return_status",
    "jaxmg.potrs_jit_ctx": "return_logdet",
    "jaxmg.syevd_jit_ctx": "return_eigenvectors",
    "jaxmg.cho_factor": "refine",
    "jaxmg.RefinedFactor.solve": "return_status",
    "jaxmg.linalg.eigh": "eigvals_only",
}


def parameters(function):
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_are_annotated(name):
    function = FUNCTIONS[name]
    missing = {
        parameter.name
        for parameter in parameters(function)
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    }
    assert not missing
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", FUNCTIONS)
def test_overloads_have_the_parameters_of_the_function(name):
    """A default that is ``...`` in an overload stands for another value than the function's."""
    function = FUNCTIONS[name]
    for overload in typing.get_overloads(function):
        for mine, its in zip(parameters(overload), parameters(function), strict=True):
            assert (mine.name, mine.kind) == (its.name, its.kind)
            assert mine.default in (its.default, ..., mine.empty)


def members(annotation):
    """The members of a union, by name; unions and literals within it are taken apart."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {name for each in typing.get_args(annotation) for name in members(each)}
    if typing.get_origin(annotation) is typing.Literal:
        return {repr(value) for value in typing.get_args(annotation)}
    return {"True", "False"} if annotation is bool else {str(annotation)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_overloads_accept_what_the_function_accepts(name):
    """Type checkers don't compare them: see `_types.Else`."""
    function = FUNCTIONS[name]
    overloads = [typing.get_type_hints(each) for each in typing.get_overloads(function)]
    if not overloads or name == "jaxmg.pad_rows":
        return
    for parameter, annotation in typing.get_type_hints(function).items():
        mine = {member for each in overloads for member in members(each[parameter])}
        its, no = members(annotation), members(_types.Else)
        if annotation is str:  # the overloads name what it may be
            assert all(member.startswith(("'", '"')) for member in mine - no)
        elif parameter != "return":
            assert mine - no == its


@pytest.mark.parametrize("name", OVERLOADED)
def test_an_argument_decides_the_type_of_the_result(name):
    overloads = [inspect.signature(x) for x in typing.get_overloads(FUNCTIONS[name])]
    assert len(overloads) > 1
    assert len({x.parameters[OVERLOADED[name]].annotation for x in overloads}) > 1
    assert len({x.return_annotation for x in overloads}) > 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_can_be_evaluated(name):
    """By what reads types while a program runs; matplotlib need not be installed."""
    if name == "jaxmg.plot_block_to_cyclic":
        pytest.importorskip("matplotlib")
        pytest.skip("its Figure is imported for type checkers alone")
    assert "return" in typing.get_type_hints(FUNCTIONS[name])


def listed(**argument):
    """The names that an error lists for an argument that has none of them."""
    call = {"routine": "potrs", "n": 8, "dtype": "float64", **argument}
    with pytest.raises(ValueError, match="must be one of") as error:
        jaxmg.plan(**call)
    names, _, _ = str(error.value).partition("; got")
    return set(re.findall(r"'([^']*)'", names.partition("must be one of")[2]))


def test_names_are_those_that_the_functions_accept():
    assert set(typing.get_args(_types.Backend)) == listed(backend="?")
    assert set(typing.get_args(_types.PrecisionName)) == listed(precision="?")
    assert set(typing.get_args(_types.RoutineName)) == listed(routine="?")
    assert set(typing.get_args(_types.Refine)) >= listed(refine="?")


@pytest.mark.parametrize("name", typing.get_args(_types.Refine))
def test_refine_accepts_its_names(name):
    assert jaxmg.plan("potrs", 8, "float64", 1, refine=name).refine
