"""Which engines serve a model, and what is told of it."""

from __future__ import annotations

import pytest

from gateway.core.types import EngineLimits
from gateway.engines.pool import Pool, Pools
from gateway.engines.target import Carrier, Scheduling, Target, Timeouts
from gateway.testing import answers


def a_target(name, pool="chat"):
    timeouts = Timeouts(1, 1, 1)
    return Target(name, f"http://{name}", pool, Scheduling.FCFS, Carrier.AUTO, EngineLimits(), timeouts, "secret")


def pools(stated=None):
    a, b = a_target("a"), a_target("b")
    return Pools([Pool("chat", ("tiny", "adapter"), (a, b), stated)]), a, b


def test_a_model_belongs_to_the_pool_that_lists_it():
    all_pools, _, _ = pools()
    assert all_pools.of_model("adapter").name == "chat"
    assert all_pools.of_model("nope") is None


def an_adapter(name="lora", parent="tiny"):
    return {**answers.model_card(name, None), "parent": parent, "root": "/srv/loras/x"}


def test_an_adapter_of_a_served_model_is_served_once_every_engine_lists_it_and_no_longer_than_that():
    all_pools, a, b = pools()
    base = answers.model_card("tiny", 8192)
    assert all_pools.of_model("lora") is None
    all_pools.learn(a, [base, an_adapter()])
    assert all_pools.of_model("lora").name == "chat"
    assert all_pools.context_tokens("lora") == 8192
    assert all_pools.card("lora")["root"] == "lora"
    assert all_pools.models() == ("tiny", "adapter", "lora")
    all_pools.learn(b, [base])
    assert all_pools.of_model("lora") is None
    all_pools.learn(b, [base, an_adapter()])
    assert all_pools.of_model("lora").name == "chat"
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
    assert (both.of_model("lora").name, both.of_model("other").name) == ("one", "two")
    both.learn(two, [an_adapter("lora", "other")])
    assert both.of_model("lora") is None


def test_the_context_is_the_smallest_that_an_engine_names():
    all_pools, a, b = pools()
    assert all_pools.context_tokens("tiny") is None
    all_pools.learn(a, [answers.model_card("tiny", 8192)])
    all_pools.learn(b, [answers.model_card("tiny", 4096)])
    assert all_pools.context_tokens("tiny") == 4096


def test_a_stated_context_is_believed():
    all_pools, a, _ = pools(stated=1000)
    all_pools.learn(a, [answers.model_card("tiny", 8192)])
    assert all_pools.context_tokens("tiny") == 1000


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
