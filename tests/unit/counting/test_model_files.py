from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.counting.model_files import TokenizerUnusable, read_model_files


def _config(folder: Path, **members: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | members))


def _unusable(folder: Path, revision: str | None = None) -> TokenizerUnusable:
    with pytest.raises(TokenizerUnusable) as caught:
        read_model_files(folder, revision)
    return caught.value


def test_a_models_folder_gives_its_tokenizer_template_and_named_tokens(model_folder: Path) -> None:
    files = read_model_files(model_folder)
    assert files.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert list(files.templates) == ["default"]
    assert files.tokenizer.token_to_id("<|begin|>") == 0


def test_a_template_file_of_its_own_wins_over_the_configuration(model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").write_text("from the file")
    assert read_model_files(model_folder).templates == {"default": "from the file"}


def test_named_templates_are_read_from_files_and_from_the_configuration(model_folder: Path) -> None:
    _config(model_folder, chat_template=[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])
    assert read_model_files(model_folder).templates == {"default": "a", "tool_use": "b"}
    (model_folder / "chat_template.jinja").write_text("c")
    (model_folder / "additional_chat_templates").mkdir()
    (model_folder / "additional_chat_templates" / "tool_use.jinja").write_text("d")
    assert read_model_files(model_folder).templates == {"default": "c", "tool_use": "d"}


def test_a_processors_template_serves_where_the_tokenizer_has_none(model_folder: Path) -> None:
    _config(model_folder, chat_template=None)
    assert read_model_files(model_folder).templates == {}
    (model_folder / "chat_template.json").write_text('{"chat_template": "p"}')
    assert read_model_files(model_folder).templates == {"default": "p"}


def test_a_revision_names_a_snapshot_of_a_model_cache(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "snapshots").mkdir()
    (cache / "snapshots" / "abc").symlink_to(model_folder)
    assert read_model_files(cache, "abc").templates
    assert "no such revision" in _unusable(cache, "other").problem
    assert read_model_files(model_folder, "any").templates, "a plain folder is the revision that it is"


def test_a_missing_or_broken_file_is_named_with_the_fix(model_folder: Path) -> None:
    (model_folder / "tokenizer_config.json").write_text("[")
    assert _unusable(model_folder).path.name == "tokenizer_config.json"
    (model_folder / "tokenizer_config.json").write_text("[]")
    assert "object" in _unusable(model_folder).problem
    (model_folder / "tokenizer.json").write_text("{}")
    assert _unusable(model_folder).path.name == "tokenizer.json"
    (model_folder / "tokenizer.json").unlink()
    error = _unusable(model_folder)
    assert "no such file" in error.problem and "kind: engine" in error.fix
    assert str(error) == f"{error.path}: {error.problem}. {error.fix}."


@pytest.mark.parametrize("model_type", ["gpt_oss", "deepseek_v32"])
def test_a_model_whose_prompts_are_built_in_code_is_not_counted_from_files(model_folder: Path, model_type: str) -> None:
    (model_folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert "kind: engine" in _unusable(model_folder).fix


def test_a_model_with_a_tokenizer_of_its_own_kind_is_not_counted_from_files(model_folder: Path) -> None:
    (model_folder / "config.json").write_text('{"model_type": "llama"}')
    assert read_model_files(model_folder)
    (model_folder / "tekken.json").write_text("{}")
    assert "kind: engine" in _unusable(model_folder).fix


def test_tokens_that_only_the_configuration_knows_are_single_tokens(model_folder: Path) -> None:
    _config(
        model_folder,
        pad_token="<|pad|>",
        image_token="<|image|>",
        extra_special_tokens=["<|extra|>"],
        added_tokens_decoder={"900": {"content": "<|added|>", "special": True, "normalized": False}},
    )
    files = read_model_files(model_folder)
    assert files.special_tokens["image_token"] == "<|image|>"
    for token in ("<|pad|>", "<|image|>", "<|extra|>", "<|added|>"):
        assert files.tokenizer.encode(token, add_special_tokens=False).tokens == [token]


def test_a_special_tokens_map_serves_older_models(model_folder: Path) -> None:
    (model_folder / "special_tokens_map.json").write_text('{"bos_token": {"content": "<|end|>"}}')
    assert read_model_files(model_folder).special_tokens["bos_token"] == "<|end|>"
    _config(model_folder, added_tokens_decoder={})
    assert read_model_files(model_folder).special_tokens["bos_token"] == "<|begin|>"


def test_settings_of_a_training_run_do_not_cut_or_fill_prompts(model_folder: Path) -> None:
    tokenizer = read_model_files(model_folder).tokenizer
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(model_folder / "tokenizer.json"))
    assert len(read_model_files(model_folder).tokenizer.encode("abc def", add_special_tokens=False)) not in (2, 50)
