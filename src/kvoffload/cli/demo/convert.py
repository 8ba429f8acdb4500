"""Turns a GGUF file into a directory that the engine can serve. A program of its own: `python -m … GGUF TARGET`.

The only file of the command line that loads torch; it runs in a child, so its memory is gone when the engine starts.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, target: Path) -> None:
    """Write config, weights (float32, safetensors), tokenizer and chat template into `target`."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model that was loaded from GGUF counts as quantised and refuses to be saved, although its weights are plain
    # numbers by now. A fresh model of the same shape takes them over and knows nothing of GGUF.
    fields = {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
    fresh = AutoModelForCausalLM.from_config(type(loaded.config)(**fields))
    fresh.load_state_dict(loaded.state_dict())
    fresh.to(torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
