from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedtorch.metrics.exact_match import exact_match, normalise


def test_a_blank_before_a_comma_goes_after_the_semicolon_rule() -> None:
    assert normalise("SELECT  A , B FROM ( C ) ;") == "select a, b from (c);"
    assert normalise("") == ";"
    assert normalise("a ; b") == "a; b"  # one semicolon anywhere is enough


def test_only_spaces_are_collapsed() -> None:
    assert not exact_match("select a\tfrom b", "select a from b")


def test_values_are_compared_without_case_and_quotes_without_kind() -> None:
    assert exact_match("select 'New York'", 'SELECT "new york" ;')


def test_without_normalising_the_bare_strings_are_compared() -> None:
    assert exact_match("SELECT 1 ;", "SELECT 1 ;", normalised=False)
    assert not exact_match("SELECT 1;", "SELECT 1 ;", normalised=False)


@given(st.text(alphabet="aB ,;()'\"<=\u00df\u0130\n", max_size=30))
def test_a_query_matches_itself_in_other_case_of_ascii_and_with_more_spaces(sql: str) -> None:
    assert exact_match(sql, sql)
    assert exact_match(sql.replace(" ", "   "), sql)
