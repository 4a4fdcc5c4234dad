"""JSON objects with a verdict in a text."""

from __future__ import annotations

from tiers import each_row

from rove.rubrics.verdict_json import object_at, objects_in


@each_row(
    ("text", "verdict"),
    [
        ('{"verdict": "no"}', "no"),
        ('{"a": {"verdict": "yes"}, "verdict": "no"}', "no"),
        ('{"reason": "1,} {", "Verdict": "no",}', "no"),
        ('{"reason": "a\nb", /* c } */ "verdict": "no"} ', "no"),
        ("{'reason': 'it\\'s \"5\"', verdict: no}", "no"),
        ('{"score": 8.0}', "8"),
        ('{"score": 8.5}', "8.5"),
        ('{"verdict": true}', "True"),
        ('{"verdict": "no", "verdict": "yes"}', ""),
        ('{"grade": "C", "score": 2}', ""),
        ('{"reason": "no"}', None),
    ],
)
def test_the_verdict_of_an_object_is_read(text: str, verdict: str | None) -> None:
    verdict_object = object_at(text, 0)
    assert verdict_object is not None and verdict_object.verdict == verdict
    assert verdict_object.end == len(text.rstrip())


@each_row("text", ["", "no", '{"verdict": "no"', '{"a": "b" "c"}', '{"a": b c}', "{" * 200 + "}" * 200, '["no"]'])
def test_text_that_is_not_an_object_is_not_read(text: str) -> None:
    assert object_at(text, 0) is None


def test_objects_are_found_in_order_without_those_inside_others() -> None:
    text = 'a {"verdict": "no", "b": {"verdict": "yes"}} c {d} {"verdict": "e"}'
    assert [verdict_object.verdict for verdict_object in objects_in(text)] == ["no", "e"]
