"""Which engines serve a model, and what is told of it."""

from __future__ import annotations

import pytest

from gateway.core.types import LONG, SHORT, EngineLimits
from gateway.engines.pool import Pool, Pools
from gateway.engines.target import Carrier, Scheduling, Target, Timeouts
from gateway.testing import answers


def a_target(name, pool="chat"):
    timeouts = Timeouts(1, 1, 1)
    return Target(name, f"http://{name}", pool, Scheduling.FCFS, Carrier.AUTO, EngineLimits(), timeouts, "secret")


def pools(stated=None):
    a, b = a_target("a"), a_target("b")
    return Pools([Pool("chat", ("tiny", "adapter"), (a, b), stated)]), a, b


def names(model_pools):
    return [pool.name for pool in model_pools]


def test_a_model_belongs_to_the_pool_that_lists_it():
    all_pools, _, _ = pools()
    assert names(all_pools.of_model("adapter")) == ["chat"]
    assert all_pools.of_model("adapter").of(SHORT) is all_pools.of_model("adapter").of(LONG)
    assert all_pools.of_model("nope") is None


def context(all_pools, model):
    (pool,) = all_pools.of_model(model)
    assert all_pools.context_tokens(pool, model) == all_pools.longest_context_tokens(all_pools.of_model(model), model)
    return all_pools.context_tokens(pool, model)


def by_length():
    """Return pools of which two share `tiny`, two `big`, one alone has `plain`; and the targets by pool."""
    lists = {"s": (SHORT, "tiny", "big"), "lt": (LONG, "tiny"), "lb": (LONG, "big"), "p": (None, "plain")}
    targets = {name: a_target(name, name) for name in lists}
    made = [Pool(n, tuple(models), (targets[n],), length_class=length) for n, (length, *models) in lists.items()]
    return Pools(made), targets


def test_the_length_class_decides_between_the_two_pools_of_a_model():
    all_pools, _ = by_length()
    chosen = {m: [all_pools.of_model(m).of(length).name for length in (SHORT, LONG)] for m in all_pools.models()}
    assert chosen == {"tiny": ["s", "lt"], "big": ["s", "lb"], "plain": ["p", "p"]}
    assert names(all_pools.of_model("tiny")) == ["s", "lt"]
    assert all_pools.of_model("tiny").named("lt").name == "lt"


def test_each_of_two_pools_has_its_own_context_and_the_longer_is_known_once_both_are():
    all_pools, targets = by_length()
    tiny = all_pools.of_model("tiny")
    all_pools.learn(targets["s"], [answers.model_card("tiny", 2048)])
    assert all_pools.longest_context_tokens(tiny, "tiny") is None
    assert all_pools.card("tiny")["max_model_len"] == 2048
    all_pools.learn(targets["lt"], [answers.model_card("tiny", 8192)])
    assert [all_pools.context_tokens(pool, "tiny") for pool in tiny] == [2048, 8192]
    assert all_pools.longest_context_tokens(tiny, "tiny") == 8192
    assert all_pools.card("tiny")["max_model_len"] == 8192


def test_an_adapter_is_served_by_both_pools_once_both_list_it():
    all_pools, targets = by_length()
    base = answers.model_card("tiny", 8192)
    all_pools.learn(targets["lt"], [base])
    all_pools.learn(targets["s"], [base, an_adapter()])
    assert all_pools.of_model("lora") is None
    all_pools.learn(targets["lt"], [base, an_adapter()])
    assert names(all_pools.of_model("lora")) == ["s", "lt"]
    all_pools.learn(targets["lt"], [base])
    assert all_pools.of_model("lora") is None


def an_adapter(name="lora", parent="tiny"):
    return {**answers.model_card(name, None), "parent": parent, "root": "/srv/loras/x"}


def test_an_adapter_of_a_served_model_is_served_once_every_engine_lists_it_and_no_longer_than_that():
    all_pools, a, b = pools()
    base = answers.model_card("tiny", 8192)
    assert all_pools.of_model("lora") is None
    all_pools.learn(a, [base, an_adapter()])
    assert names(all_pools.of_model("lora")) == ["chat"]
    assert context(all_pools, "lora") == 8192
    assert all_pools.card("lora")["root"] == "lora"
    assert all_pools.models() == ("tiny", "adapter", "lora")
    all_pools.learn(b, [base])
    assert all_pools.of_model("lora") is None
    all_pools.learn(b, [base, an_adapter()])
    assert names(all_pools.of_model("lora")) == ["chat"]
    all_pools.learn(a, [base])
    assert all_pools.models() == ("tiny", "adapter")


@pytest.mark.parametrize("parent", [None, "other", 7, []])
def test_what_is_no_adapter_of_a_served_model_is_not_served(parent):
    all_pools, a, _ = pools()
    all_pools.learn(a, [answers.model_card("tiny", 8192), an_adapter(parent=parent)])
    assert all_pools.of_model("lora") is None


def test_an_adapters_name_in_two_pools_is_neithers():
    one, two = a_target("one", "one"), a_target("two", "two")
    both = Pools([Pool("one", ("tiny",), (one,)), Pool("two", ("other",), (two,))])
    both.learn(one, [an_adapter("lora", "tiny"), an_adapter("other", "tiny")])
    assert (names(both.of_model("lora")), names(both.of_model("other"))) == (["one"], ["two"])
    both.learn(two, [an_adapter("lora", "other")])
    assert both.of_model("lora") is None


def test_the_context_is_the_smallest_that_an_engine_names():
    all_pools, a, b = pools()
    assert context(all_pools, "tiny") is None
    all_pools.learn(a, [answers.model_card("tiny", 8192)])
    all_pools.learn(b, [answers.model_card("tiny", 4096)])
    assert context(all_pools, "tiny") == 4096


def test_a_stated_context_is_believed():
    all_pools, a, _ = pools(stated=1000)
    all_pools.learn(a, [answers.model_card("tiny", 8192)])
    assert context(all_pools, "tiny") == 1000


@pytest.mark.parametrize(("root", "shown"), [("/srv/models/x", "tiny"), ("./tiny", "tiny"), ("org/model", "org/model")])
def test_a_card_passes_but_for_a_path_on_the_engines_disk(root, shown):
    all_pools, a, _ = pools()
    all_pools.learn(a, [{**answers.model_card("tiny", 8192), "root": root, "extra": 1}])
    assert all_pools.card("tiny")["root"] == shown
    assert all_pools.card("tiny")["extra"] == 1


def test_a_model_that_is_not_served_here_has_no_card():
    all_pools, a, _ = pools()
    all_pools.learn(a, [answers.model_card("other", 8192)])
    assert all_pools.card("other") is None
    assert all_pools.card("tiny") is None


def test_an_engines_key_is_not_in_its_repr():
    assert "secret" not in repr(a_target("a"))
