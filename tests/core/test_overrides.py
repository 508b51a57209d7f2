"""Who defines a member, and whether a subclass has one of its own."""

from __future__ import annotations

from fedtorch.core.overrides import definer, overrides


class Base:
    def step(self) -> str:
        return "base"

    def weigh(self) -> str:
        return "base"


class Middle(Base):
    def step(self) -> str:
        return "middle"


class Bottom(Middle):
    weigh = Base.weigh


def test_the_definer_is_the_class_whose_member_an_instance_has() -> None:
    assert [definer(cls, "step") for cls in (Base, Middle, Bottom)] == [Base, Middle, Middle]
    assert [definer(cls, "weigh") for cls in (Base, Middle, Bottom)] == [Base, Base, Bottom]
    assert definer(Bottom, "aggregate") is None


def test_a_class_overrides_a_member_if_it_has_another_one() -> None:
    assert [overrides(cls, "step", Base) for cls in (Base, Middle, Bottom)] == [False, True, True]
    assert not overrides(Bottom, "step", Middle)


def test_a_class_that_names_the_bases_member_as_its_own_overrides_nothing() -> None:
    assert not overrides(Bottom, "weigh", Base)
