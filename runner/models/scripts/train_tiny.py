"""Train the tiny test pair: one tokenizer, a target and a smaller draft.

Run with the engine environment's Python, never imported by the project:
``python train_tiny.py CORPUS.json OUT_FOLDER``. CORPUS.json is a list of [request, answer].
Writes OUT_FOLDER/target and OUT_FOLDER/draft. Seeded: the same machine makes the same models.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from tokenizers import (  # type: ignore[import-not-found,unused-ignore]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SPECIAL = ["<pad>", "<bos>", "<eos>", "<user>", "<reply>"]
VOCABULARY = 512
CONTEXT = 1024
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<reply>{{ m['content'] }}{{ eos_token }}"
    "{% else %}<user>{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<reply>{% endif %}"
)
# Heads of 32: the smallest size that vLLM's CPU attention has.
SIZES = {
    "target": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
               "num_attention_heads": 4, "num_key_value_heads": 2},
    "draft": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1},
}  # fmt: skip
STEPS = {"target": 150, "draft": 250}
BATCH = 8


def make_tokenizer(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A",
        pair="<bos> $A $B",
        special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def encode(tokenizer: Any, pairs: list[list[str]]) -> Any:
    """All examples as one matrix of ids, padded on the right; shape (examples, longest)."""
    rows = [
        tokenizer(f"<user>{request}<reply>{answer}<eos>")["input_ids"] for request, answer in pairs
    ]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def train(name: str, data: Any, tokenizer: Any) -> Any:
    torch.manual_seed(1)
    ids = {word: tokenizer.convert_tokens_to_ids(f"<{word}>") for word in ("pad", "bos", "eos")}
    config = LlamaConfig(
        vocab_size=VOCABULARY,  # the same for both: vLLM refuses a draft of another size
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=ids["pad"],
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        **SIZES[name],
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    steps = STEPS[name]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    order = torch.Generator().manual_seed(2)
    began = time.monotonic()
    loss = None
    for step in range(steps):
        batch = data[torch.randint(len(data), (BATCH,), generator=order)]
        batch = batch[:, : int((batch != 0).sum(1).max())]
        labels = batch.masked_fill(batch == 0, -100)
        loss = model(input_ids=batch, attention_mask=(batch != 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            spent = time.monotonic() - began
            print(f"- {name}: step {step + 1} of {steps}, loss {loss.item():.2f}, {spent:.0f} s",
                  flush=True)  # fmt: skip
    return model


def main() -> None:
    # More threads wait for one another longer than they compute on matrices this small, and on a
    # busy machine by far.
    torch.set_num_threads(1)
    corpus, out = Path(sys.argv[1]), Path(sys.argv[2])
    pairs = json.loads(corpus.read_text(encoding="utf-8"))
    tokenizer = make_tokenizer([text for pair in pairs for text in pair])
    data = encode(tokenizer, pairs)
    print(f"- {len(data)} examples, longest {data.shape[1]} tokens", flush=True)
    for name in SIZES:
        train(name, data, tokenizer).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


if __name__ == "__main__":
    main()
