"""What the ranks of tests import, for a fork server to import once."""

import gc
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

SUPPORT = Path(__file__).parent
gc.disable()  # until all is imported, see frozen.py
sys.path.insert(0, str(SUPPORT))  # where tests find these modules, by these names

import encodings.idna  # noqa: E402, F401  # asked for when a rank first looks for another's address

import accounts  # noqa: E402
import harness  # noqa: E402, F401
import hosts  # noqa: E402, F401
import hypothesis  # noqa: E402, F401
import narrow  # noqa: E402, F401
import parsed  # noqa: E402
import prepared_files  # noqa: E402, F401
import silos  # noqa: E402, F401
import smoke_runs  # noqa: E402, F401
import supervisor  # noqa: E402, F401
import thread_peers  # noqa: E402, F401
import toy  # noqa: E402, F401
import transformers.models.gpt2.modeling_gpt2  # noqa: E402, F401
import transformers.models.t5.tokenization_t5  # noqa: E402, F401
from tensorboard.backend.event_processing import event_accumulator  # noqa: E402, F401
from tqdm import tqdm  # noqa: E402

import fedtorch.main  # noqa: E402, F401

with suppress(ImportError):
    import dp_accounting.pld  # noqa: F401
with suppress(ImportError):  # for ranks that train adapters: a second each
    import peft  # noqa: F401
with suppress(ImportError):  # what keys, tags and masks are made with
    import cryptography.hazmat.backends.openssl.backend
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import cryptography.hazmat.primitives.asymmetric.x25519
    import cryptography.hazmat.primitives.ciphers.aead
    import cryptography.hazmat.primitives.kdf.hkdf  # noqa: F401
with suppress(ImportError):  # what texts are scored with
    import rouge_score.rouge_scorer  # noqa: F401
    import sklearn.metrics  # noqa: F401
with suppress(ImportError):  # thousands of patterns, made when a first model is read from files
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("t5")

# Algorithms, tasks and what they are made of are otherwise imported once they are chosen.
for room in ("algorithms", "data", "metrics", "models", "privacy", "tasks", "text"):
    for path in sorted((SUPPORT.parents[1] / "fedtorch" / room).rglob("[a-z]*.py")):
        import_module(".".join(path.relative_to(SUPPORT.parents[1]).with_suffix("").parts))

tqdm.get_lock()  # a rank that was killed would leave one of its own behind, and Python warns of each in the end
accounts.remember()
parsed.parse_once()
