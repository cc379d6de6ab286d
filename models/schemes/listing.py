"""Position embeddings as rows of plain values, for tables and JSON."""

from typing import Any

from lengthlens.models.schemes import scheme_kind, scheme_names


def scheme_rows() -> list[dict[str, Any]]:
    """One row for each scheme and each sensible composition: where it acts, its relation in words, its options.

    >>> row = next(row for row in scheme_rows() if row["name"] == "relative")
    >>> row["acts"], row["relation"], row["options"]
    (['score'], 'min(i−j, max_distance)', {'max_distance': 128})
    """
    rows = []
    for name in scheme_names():
        kind = scheme_kind(name)
        rows.append(
            {
                "name": name,
                "family": kind.scheme.family if kind.wrapper is None else kind.wrapper.prefix,
                "summary": kind.summary,
                "acts": kind.scheme.acts(),
                "relation": kind.relation_in_words,
                "options": kind.options,
            }
        )
    return rows
