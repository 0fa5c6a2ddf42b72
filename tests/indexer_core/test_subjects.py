"""Names become single subject tokens and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.core import subjects


@given(st.text(min_size=1))
def test_any_name_becomes_one_token_and_comes_back(name):
    token = subjects.escape(name)
    assert subjects.unescape(token) == name
    assert not set(token) & set(". *>\t\r\n")


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_get_different_tokens(one, other):
    assert (subjects.escape(one) == subjects.escape(other)) == (one == other)


def test_subjects_follow_the_design():
    assert subjects.events("default", "10.0.0.1:8000", 1) == (
        "warmroute.default.kv.10=2E0=2E0=2E1=3A8000.1"
    )
    assert subjects.heartbeat("p", "i") == "warmroute.p.hb.i"
    assert subjects.snapshot("p", "i") == "warmroute.p.snapshot.i"
    assert subjects.match("p") == "warmroute.p.match"


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        subjects.escape("")
