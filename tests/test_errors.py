"""One tree of errors, one shape everywhere."""

import pickle

import pytest

from protolith import errors


def all_kinds(kind=errors.ProtolithError):
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_kinds(child)


def test_codes_are_unique_slugs():
    codes = [kind.code for kind in all_kinds()]
    assert len(codes) == len(set(codes))
    assert all(code == code.lower() and " " not in code for code in codes)


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = errors.__doc__
    for kind in all_kinds():
        assert kind.__name__ in drawn


@pytest.mark.parametrize("kind", list(all_kinds()), ids=lambda kind: kind.__name__)
def test_every_kind_survives_a_process_border(kind):
    error = kind("it broke", hint="mend it", where="file:3")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.to_dict() == error.to_dict()
    assert str(again) == "file:3: it broke (mend it)"


def test_extra_parts_survive_too():
    error = errors.ResumeMismatchError("differs", differences=("a", "b"))
    assert pickle.loads(pickle.dumps(error)).to_dict()["differences"] == ["a", "b"]
