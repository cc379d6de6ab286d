"""Position embeddings: one class each, and what a name and its options stand for."""

from lengthlens.models.schemes.protocols import NamedKeys
from lengthlens.models.schemes.relation import Relation
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes, schemes_in
from lengthlens.models.schemes.spec import SCHEMES, SchemeSpec, make_scheme, scheme_names

__all__ = ["SCHEMES", "NamedKeys", "PositionScheme", "Positions", "Relation", "SchemeSpec", "Sizes"]
__all__ += ["make_scheme", "scheme_names", "schemes_in"]
