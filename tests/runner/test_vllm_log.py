"""vLLM's log read: one sentence for each way a start fails, and the settings it runs with.

The lines are those that vLLM 0.32.0 wrote.
"""

import pytest

from runner.engines.vllm_log import (
    bare,
    cache_config,
    effective_settings,
    explain_failure,
    scrub,
)

VOCABULARY = """\
(APIServer pid=11) INFO 12-01 06:55:20 [model.py:733] Resolved architecture: LlamaForCausalLM
(APIServer pid=11) Traceback (most recent call last):
  File "/env/vllm/engine/arg_utils.py", line 2099, in create_speculative_config
    return SpeculativeConfig(**self.speculative_config)
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
  Value error, Target and draft model should have the same vocabulary size. Target model \
vocab_size=512. Draft model vocab_size=576. [type=value_error, input_value=ArgsKwargs((), \
{'method': 'draft_model'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_MODEL = """\
OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them \
in the cached files.
Check your internet connection or see how to run the library in offline mode.
"""
PORT = """\
(APIServer pid=11) Traceback (most recent call last):
OSError: [Errno 98] Address already in use
"""
ARGUMENT = "api_server.py: error: argument --dtype: invalid choice: 'int3' (choose from 'auto')"
MISSING_PACKAGE = """\
(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] EngineCore failed to start.
(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] Traceback (most recent call last):
(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] ImportError: Arctic Inference is required \
for suffix decoding. Install via `pip install arctic-inference==0.1.1`.
(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above.
"""
MEMORY = """\
(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] torch.OutOfMemoryError: CUDA out of \
memory. Tried to allocate 2.00 GiB.
(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above.
"""
KV_MEMORY = """\
(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] ValueError: To serve at least one request \
with the models's max seq len (131072), 16.00 GiB KV cache is needed, which is larger than the \
available KV cache memory (1.0 GiB).
"""
CRASH = """\
(Worker pid=13) RuntimeError: Worker failed with error 'boom'
(EngineCore pid=12) KeyError: 'model.layers.0.weight'
(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("log", "code", "refused", "words"),
    [
        (VOCABULARY, "refused", True, "should have the same vocabulary size"),
        (ARGUMENT, "refused", True, "argument --dtype: invalid choice"),
        (MISSING_PACKAGE, "refused", True, "Arctic Inference is required"),
        (NO_MODEL, "model_not_found", False, "cannot find the model"),
        (PORT, "port_in_use", False, "in use by another program"),
        (MEMORY, "out_of_memory", False, "CUDA out of memory"),
        (KV_MEMORY, "out_of_memory", False, "KV cache is needed"),
        (CRASH, "died_at_start", False, "model.layers.0.weight"),
        ("", "died_at_start", False, "ended with code 1"),
    ],
)
def test_each_way_to_fail_has_its_sentence(log: str, code: str, refused: bool, words: str) -> None:
    found = explain_failure(log.splitlines(), 1)
    assert (found.code, found.refused) == (code, refused)
    assert words in found.reason
    assert "\n" not in found.reason
    assert "input_value" not in found.reason
    assert "Traceback" not in found.reason


def test_a_kill_by_the_system_is_most_often_a_lack_of_memory() -> None:
    found = explain_failure(["(EngineCore pid=12) loading"], 137)
    assert found.code == "killed"
    assert "memory" in found.reason
    assert not found.refused


def test_a_long_reason_is_cut() -> None:
    found = explain_failure([f"ValueError: {'long ' * 500}"], 1)
    assert len(found.reason) < 600


def test_what_vllm_puts_before_a_line_is_taken_off() -> None:
    line = "(EngineCore pid=12) ERROR 12-01 06:55:20 [core.py:1136] ValueError: no"
    assert bare(line) == "ValueError: no"
    assert bare("plain words") == "plain words"


def test_secrets_do_not_stay_in_a_line() -> None:
    token = "hf_" + "a1B2" * 6
    assert scrub(f"token {token} and key k3y", ["k3y", ""]) == "token *** and key ***"
    assert scrub("Authorization: Bearer abc.def") == "Authorization: Bearer ***"
    assert scrub("self-k-something stays") == "self-k-something stays"


LOG = """\
(APIServer pid=1) WARNING 12-01 06:10:25 [vllm.py:725] Model Runner V2 requires Triton; using the \
V1 model runner instead.
(EngineCore pid=2) INFO 12-01 06:10:46 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='/m', speculative_config=SpeculativeConfig(method='ngram', model=None, \
num_spec_tokens=4), tokenizer='/m', trust_remote_code=False, dtype=torch.float32, \
max_seq_len=2048, tensor_parallel_size=1, quantization=None, enforce_eager=True, \
enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore pid=2) INFO 12-01 06:10:46 [ompmultiprocessing.py:185] \tlocal_rank=0, core ids=[0, 1]
(Worker pid=3) INFO 12-01 06:10:59 [cpu_model_runner.py:68] Starting to load model /m...
(EngineCore pid=2) INFO 12-01 06:11:09 [kv_cache_utils.py:2327] CPU KV cache size: 55,356 tokens
"""


def test_the_settings_that_run_are_read_from_the_log() -> None:
    assert effective_settings(LOG) == {
        "dtype": "float32",
        "max_model_len": 2048,
        "enforce_eager": True,
        "prefix_caching": True,
        "chunked_prefill": True,
        "tensor_parallel_size": 1,
        "quantization": "none",
        "speculation": "SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)",
        "runner": "V1",
        "async_scheduling": False,
        "attention_backend": None,
        "kv_cache_tokens": 55356,
        "cpu_cores_bound": "0, 1",
    }


def test_what_the_log_does_not_say_is_unknown() -> None:
    assert set(effective_settings("nothing of interest").values()) == {None}


def test_a_baseline_is_told_from_an_unknown() -> None:
    line = "Initializing a V1 LLM engine (v1) with config: speculative_config=None, dtype=x"
    assert effective_settings(line)["speculation"] == "none"


def test_the_cache_is_read_from_the_metrics() -> None:
    text = 'vllm:cache_config_info{block_size="128",num_gpu_blocks="432",engine="0"} 1.0\n'
    assert cache_config(text)["num_gpu_blocks"] == "432"
    assert cache_config("") == {}
