"""Places in a buffer as sums of multiples of loop variables, so that what a reshape takes apart comes together again.

An index is a number plus multiples of atoms. An atom is a loop variable, the quotient or the rest of an index, or an
integer that is read from a tensor. All atoms are zero or more and have a largest value, which is what decides whether
a quotient is zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any


@dataclass(frozen=True)
class Variable:
    """A loop variable."""

    name: str
    extent: int

    @property
    def most(self) -> int:
        """Return its largest value."""
        return self.extent - 1


@dataclass(frozen=True)
class Quotient:
    """An index divided by a number, rounded down."""

    index: "Index"
    by: int

    @property
    def most(self) -> int:
        """Return its largest value."""
        return self.index.most // self.by


@dataclass(frozen=True)
class Rest:
    """What a division of an index leaves."""

    index: "Index"
    by: int

    @property
    def most(self) -> int:
        """Return its largest value."""
        return self.by - 1


@dataclass(frozen=True)
class Looked:
    """An integer that is read from a tensor. `Any`: an expression of codegen/values.py."""

    expression: Any
    extent: int

    @property
    def most(self) -> int:
        """Return its largest value."""
        return self.extent - 1


Atom = Variable | Quotient | Rest | Looked


@dataclass(frozen=True)
class Index:
    """A number plus multiples of atoms."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @property
    def most(self) -> int:
        """Return the largest value it can have."""
        return self.constant + sum(atom.most * factor for atom, factor in self.terms if factor > 0)

    @property
    def least(self) -> int:
        """Return the smallest value it can have."""
        return self.constant + sum(atom.most * factor for atom, factor in self.terms if factor < 0)

    def __add__(self, other: "Index | int") -> "Index":
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        return _sum({}, (self, other))

    def __sub__(self, other: "Index | int") -> "Index":
        return self + (-other if isinstance(other, int) else other * -1)

    def __mul__(self, factor: int) -> "Index":
        if not factor:
            return Index()
        return Index(tuple((atom, own * factor) for atom, own in self.terms), self.constant * factor)

    def __floordiv__(self, by: int) -> "Index":
        if by == 1:
            return self
        whole, left = self._apart(by)
        if left.least >= 0 and left.most < by:
            return whole
        small, by = _shortened(left, by)
        if by == 1:
            return whole + small
        match small.terms:
            case ((Quotient(index=inner, by=before), 1),) if not small.constant:
                return whole + _of(Quotient(inner, before * by))
        return whole + _of(Quotient(small, by))

    def __mod__(self, by: int) -> "Index":
        if by == 1:
            return Index()
        _, left = self._apart(by)
        return left if left.least >= 0 and left.most < by else _of(Rest(left, by))

    def _apart(self, by: int) -> tuple["Index", "Index"]:
        """Return the part that a number divides, divided by it, and the rest."""
        whole = tuple((atom, factor // by) for atom, factor in self.terms if not factor % by)
        left = tuple((atom, factor) for atom, factor in self.terms if factor % by)
        return Index(whole, self.constant // by), Index(left, self.constant % by)

    def put(self, values: Mapping[str, "Index"]) -> "Index":
        """Return it with loop variables replaced."""
        return _sum({}, (Index((), self.constant), *(_put(a, values) * f for a, f in self.terms)))

    def renamed(self, old: str, new: str) -> "Index":
        """Return it with another buffer in the place of one that it reads from."""
        return _sum({}, (Index((), self.constant), *(_renamed(a, old, new) * f for a, f in self.terms)))

    def factor(self, name: str) -> int | None:
        """Return how far it moves when a loop variable goes one on; None if that is not always the same."""
        found = 0
        for atom, factor in self.terms:
            if isinstance(atom, Variable):
                found += factor if atom.name == name else 0
            elif name in names_in(atom):
                return None
        return found

    @property
    def names(self) -> frozenset[str]:
        """Return the loop variables it depends on."""
        return frozenset(name for atom, _ in self.terms for name in names_in(atom))


def _shortened(index: Index, by: int) -> tuple[Index, int]:
    """Return a smaller division with the same quotient: what is less than the shared divisor does not count."""
    terms = sorted(index.terms, key=_order)
    for cut in range(len(terms), 0, -1):
        shared = gcd(by, *(factor for _, factor in terms[:cut]))
        left = Index(tuple(terms[cut:]), index.constant % shared)
        if shared > 1 and left.least >= 0 and left.most < shared:
            kept = tuple((atom, factor // shared) for atom, factor in terms[:cut])
            return Index(kept, index.constant // shared), by // shared
    return index, by


def variable(name: str, extent: int) -> Index:
    """Return a loop variable; one of a single value is a zero."""
    return _of(Variable(name, extent)) if extent > 1 else Index()


def looked(expression: Any, extent: int) -> Index:
    """Return an integer of a tensor as an index of an axis."""
    return _of(Looked(expression, extent))


def _of(atom: Atom) -> Index:
    return Index(((atom, 1),))


def names_in(atom: Atom) -> frozenset[str]:
    """Return the loop variables an atom depends on."""
    if isinstance(atom, Variable):
        return frozenset((atom.name,))
    if isinstance(atom, Looked):
        found: frozenset[str] = atom.expression.names
        return found
    return atom.index.names


def _put(atom: Atom, values: Mapping[str, Index]) -> Index:
    if isinstance(atom, Variable):
        return values.get(atom.name, _of(atom))
    if isinstance(atom, Looked):
        return looked(atom.expression.put(values), atom.extent)
    inner = atom.index.put(values)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by


def _renamed(atom: Atom, old: str, new: str) -> Index:
    if isinstance(atom, Variable):
        return _of(atom)
    if isinstance(atom, Looked):
        return looked(atom.expression.renamed(old, new), atom.extent)
    inner = atom.index.renamed(old, new)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by


def _sum(found: dict[Atom, int], parts: tuple[Index, ...]) -> Index:
    """Return a sum, in which a quotient and the rest of the same division are the number itself."""
    for part in parts:
        for atom, factor in part.terms:
            found[atom] = found.get(atom, 0) + factor
    constant = sum(part.constant for part in parts)
    for atom, factor in found.items():
        if not isinstance(atom, Rest) or not factor:
            continue
        quotient = atom.index // atom.by
        match quotient.terms:
            case ((divided, 1),) if not quotient.constant and found.get(divided) == factor * atom.by:
                left = {one: own for one, own in found.items() if one not in (atom, divided)}
                return _sum(left, (atom.index * factor, Index((), constant)))
    terms = [(atom, factor) for atom, factor in found.items() if factor]
    return Index(tuple(sorted(terms, key=_order)), constant)


def _order(term: tuple[Atom, int]) -> tuple[int, str]:
    return -abs(term[1]), repr(term[0])
