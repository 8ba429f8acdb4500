"""Tiny random models that the CPU build of vLLM runs. No tokenizer: tests send token ids.

The weights are larger than a fresh initialisation: with small ones the output hardly depends on what is in the KV
cache, and then "equal outputs" proves nothing (see the negative control in `test_negative_control.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from real_models import make_gemma3_270m_directory

VOCAB = 1000
MAX_POSITIONS = 8192


@dataclass(frozen=True)
class TinyModel:
    """A model on disk and what a test must know of it."""

    path: str
    tokens_per_block: int
    dtype: str
    layers: int


def make_llama(root: Path) -> TinyModel:
    """Grouped-query attention, float32: outputs of different batch shapes can be compared closely."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20)
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        initializer_range=0.08,
    )
    path = root / "tiny-llama"
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(path)
    return TinyModel(str(path), tokens_per_block=128, dtype="float32", layers=4)


def make_gemma3(root: Path) -> TinyModel:
    """Sliding windows beside full attention: three cache groups that lie over each other in the same storage."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(22)
    config = Gemma3TextConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        sliding_window=256,
        sliding_window_pattern=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.08,
    )
    path = root / "tiny-gemma3"
    Gemma3ForCausalLM(config).to(torch.float32).save_pretrained(path)
    return TinyModel(str(path), tokens_per_block=128, dtype="float32", layers=6)


def make_gemma3_270m(root: Path) -> TinyModel:
    """A real one of this family; skips the test where it cannot be had."""
    path = make_gemma3_270m_directory(root)
    return TinyModel(str(path), tokens_per_block=128, dtype="float32", layers=18)


def make_lfm2(root: Path) -> TinyModel:
    """Short convolutions (a recurrent state) beside full attention."""
    import torch
    from transformers import Lfm2Config, Lfm2ForCausalLM

    torch.manual_seed(23)
    config = Lfm2Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        layer_types=["conv", "conv", "full_attention"] * 2,
        num_attention_heads=4,
        num_key_value_heads=2,
        block_ff_dim=512,
        block_auto_adjust_ff_dim=False,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.08,
    )
    path = root / "tiny-lfm2"
    Lfm2ForCausalLM(config).to(torch.float32).save_pretrained(path)
    # The engine reads these beside what transformers writes.
    _add_to_config(
        path,
        conv_dim=256,
        conv_dim_out=256,
        block_dim=256,
        block_ff_dim=512,
        block_mlp_init_scale=1.0,
        block_out_init_scale=1.0,
        block_use_swiglu=True,
        block_auto_adjust_ff_dim=False,
        block_ffn_dim_multiplier=1.0,
        block_multiple_of=256,
        conv_use_xavier_init=True,
    )
    return TinyModel(str(path), tokens_per_block=128, dtype="float32", layers=6)


def make_qwen3_next(root: Path) -> TinyModel:
    """Gated delta nets (a convolution state and a matrix) beside full attention; the engine's kernels need bfloat16."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(24)
    config = Qwen3NextConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.08,
    )
    path = root / "tiny-qwen3-next"
    Qwen3NextForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return TinyModel(str(path), tokens_per_block=256, dtype="bfloat16", layers=4)


def make_deepseek(root: Path) -> TinyModel:
    """Multi-head latent attention: one latent per token, the same on every tensor-parallel rank."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(25)
    layers = 4
    config = DeepseekV2Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        head_dim=64,
        first_k_dense_replace=layers,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=128,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        initializer_range=0.08,
    )
    path = root / "tiny-deepseek"
    DeepseekV2ForCausalLM(config).to(torch.float32).save_pretrained(path)
    return TinyModel(str(path), tokens_per_block=16, dtype="float32", layers=layers)


def make_draft(root: Path) -> TinyModel:
    """Guesses what `make_llama` says, and is wrong now and then: the same weights with some noise in the last layer."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(make_llama(root).path, dtype=torch.float32)
    torch.manual_seed(25)
    with torch.no_grad():
        model.lm_head.weight += 0.02 * torch.randn_like(model.lm_head.weight)
    path = root / "tiny-llama-draft"
    model.save_pretrained(path)
    return TinyModel(str(path), tokens_per_block=128, dtype="float32", layers=4)


def make_adapter(root: Path, name: str, seed: int) -> Path:
    """A LoRA adapter of `make_llama`: random, and large enough to show in the output."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(4):
        for module, rows in (("k_proj", 256), ("v_proj", 256)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{stem}.lora_A.weight"] = 0.1 * torch.randn(8, 512, generator=generator)
            weights[f"{stem}.lora_B.weight"] = 0.1 * torch.randn(rows, 8, generator=generator)
    path = root / name
    path.mkdir()
    save_file(weights, path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["k_proj", "v_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


def _add_to_config(path: Path, **fields: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


MAKERS: dict[str, Callable[[Path], TinyModel]] = {
    "llama": make_llama,
    "draft": make_draft,
    "gemma3": make_gemma3,
    "lfm2": make_lfm2,
    "qwen3-next": make_qwen3_next,
    "deepseek": make_deepseek,
    "gemma3-270m": make_gemma3_270m,
}


def random_tokens(seed: int, count: int) -> list[int]:
    """The same tokens for the same seed, on every machine."""
    source = random.Random(seed)
    return [source.randrange(10, VOCAB) for _ in range(count)]


def prompts_of(seed: int, number: int, tokens: int) -> list[list[int]]:
    """Several prompts that share nothing."""
    return [random_tokens(1000 * seed + index, tokens) for index in range(number)]


def full_chunk_tokens(prompts: Sequence[Sequence[int]], tokens_per_chunk: int) -> int:
    """Tokens of the prompts that lie in whole chunks: what a cache of whole chunks can serve at best."""
    return sum(len(prompt) // tokens_per_chunk * tokens_per_chunk for prompt in prompts)
