"""Turn the demo model's GGUF file into a float32 safetensors folder that vLLM loads.

Run with the engine environment's Python, never imported by the project:
``python convert_gguf.py MODEL.gguf OUT_FOLDER CHAT_TEMPLATE_FILE``. OUT_FOLDER must not exist.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from tokenizers import processors  # type: ignore[import-not-found,unused-ignore]
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)


def convert_weights(gguf: Path, out: Path, stop_id: int | None) -> None:
    """Load (dequantised by transformers) and save as float32.

    float32, as CPUs without bf16 units run bfloat16 slower than float32. ``stop_id`` is a token
    that ends an answer beside ``<eos>``.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = loaded.config
    # The loaded model counts as quantised and refuses to be saved: hand its weights to a fresh
    # model of the same config. assign=True takes the tensors over instead of copying them.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        fresh: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict(), assign=True)
    fresh.tie_weights()
    # No sampling defaults: what a request does not say stays the engine's own default.
    fresh.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=[i for i in (config.eos_token_id, stop_id) if i is not None],
        pad_token_id=config.pad_token_id,
    )
    fresh.save_pretrained(out)


def convert_tokenizer(gguf: Path, out: Path, chat_template: str) -> int | None:
    """Save a tokenizer that puts ``<bos>`` first, once; returns the id of ``###``.

    This is a base model that was taught no turns: it goes on with "### Response:" or another
    heading after its answer. The first token of a heading is therefore where an answer ends.

    The tokenizer read from a GGUF file adds no ``<bos>``, and without it this model answers with
    nonsense. The generic class keeps tokenizer.json as it is written here; the Gemma class would
    rebuild the post-processor when loading.
    """
    read: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = read.backend_tokenizer
    bos = read.bos_token
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B",
        special_tokens=[(bos, backend.token_to_id(bos))],
    )
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=read.eos_token,
        unk_token=read.unk_token,
        pad_token=read.pad_token,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(out)
    again: Any = AutoTokenizer.from_pretrained(out)
    ids = again("Hello there")["input_ids"]
    if ids.count(again.bos_token_id) != 1 or ids[0] != again.bos_token_id:
        raise SystemExit("the converted tokenizer does not put <bos> first exactly once")
    heading: int | None = backend.token_to_id("###")
    return heading


def main() -> None:
    gguf, out, template = (Path(argument) for argument in sys.argv[1:4])
    print("- writing the tokenizer", flush=True)
    stop_id = convert_tokenizer(gguf, out, template.read_text(encoding="utf-8"))
    print("- reading and converting the weights", flush=True)
    convert_weights(gguf, out, stop_id)


if __name__ == "__main__":
    main()
