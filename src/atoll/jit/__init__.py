"""JAX as all parts use it that compile a pass over many numbers."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from atoll.core.meter import spend


@lru_cache(maxsize=1)
def jax_library() -> Any:
    """Import JAX once: one thread an operation (parties run in parallel instead), compiled code kept on disk."""
    flag = "--xla_cpu_multi_thread_eigen=false"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    began = time.perf_counter()
    import jax

    spend("compile", time.perf_counter() - began)  # starting the backend is paid once, like compiling
    # Answers are waited for at once: handing each call to another thread only costs the way there and back.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.monitoring.register_event_duration_secs_listener(_compiling)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll" / "xla"
    if jax.config.jax_compilation_cache_dir is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            return jax  # nowhere to write: compile every time
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return jax


def _compiling(event: str, seconds: float, **_: object) -> None:
    if event.startswith("/jax/core/compile"):  # tracing, lowering, compiling or reading the cache
        spend("compile", seconds)
