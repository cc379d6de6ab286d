"""Position embeddings: one class each, and what a name and its options stand for."""

from lengthlens.models.schemes.relation import Relation
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes, schemes_in
from lengthlens.models.schemes.spec import (
    SCHEMES,
    WRAPPERS,
    SchemeSpec,
    make_scheme,
    relation_of,
    scheme_names,
    scheme_rows,
)

__all__ = [
    "SCHEMES",
    "WRAPPERS",
    "PositionScheme",
    "Positions",
    "Relation",
    "SchemeSpec",
    "Sizes",
    "make_scheme",
    "relation_of",
    "scheme_names",
    "scheme_rows",
    "schemes_in",
]
