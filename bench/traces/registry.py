"""Finding traces: known files by name and checksum, other files by path, else a look-alike."""

import hashlib
import os
from pathlib import Path
from typing import Literal

from msgspec import Struct

from bench.traces.lookalike import generate_conversations
from bench.traces.mooncake import read_mooncake
from bench.traces.record import TraceError, TraceRequest

FOLDER_VARIABLE = "WARMROUTE_TRACES"
GENERATED = "generated"


class KnownTrace(Struct, frozen=True):
    file: str
    sha256: str


KNOWN_TRACES = {
    "conversation": KnownTrace(
        "conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    ),
    "synthetic": KnownTrace(
        "synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
    ),
    "arxiv-1000": KnownTrace(
        "mooncake_trace_1000.jsonl",
        "e2bec9bccd21978f69a2ace7886ee2e5192a64839f7aa2c4dd5d8766fd392510",
    ),
}


class Trace(Struct, frozen=True):
    name: str
    origin: Literal["file", "generated"]
    requests: list[TraceRequest]


def traces_folder() -> Path:
    """Where trace files are looked for: $WARMROUTE_TRACES, else shared/traces beside the checkout.

    The folder need not exist.
    """
    configured = os.environ.get(FOLDER_VARIABLE)
    if configured:
        return Path(configured)
    return Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def find_known(name: str, folder: Path) -> Path | None:
    """Path of a known trace in `folder`, its checksum verified; None when the file is not there.

    Raises:
        TraceError: the file is there, but its content is not the published one.
    """
    known = KNOWN_TRACES[name]
    path = folder / known.file
    if not path.is_file():
        return None
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != known.sha256:
        raise TraceError(f"{path}: sha256 is {found}, the published file has {known.sha256}")
    return path


def load_trace(name: str, *, generated_requests: int, seed: int) -> Trace:
    """The trace called `name`: a known name, "generated", or the path of a Mooncake file.

    When the file of "conversation" is absent, `generated_requests` (>= 1) requests of the seeded
    look-alike stand in for it; `Trace.origin` tells.

    Raises:
        TraceError: an unknown name, an absent file, or one that is not in order.
    """
    if name in KNOWN_TRACES:
        path = find_known(name, traces_folder())
        if path is not None:
            return Trace(name, "file", read_mooncake(path))
        if name != "conversation":
            raise TraceError(
                f"{KNOWN_TRACES[name].file} is not in {traces_folder()}; "
                f"set {FOLDER_VARIABLE} to the folder that has it"
            )
    if name in (GENERATED, "conversation"):
        requests = generate_conversations(generated_requests, seed=seed)
        return Trace("conversation look-alike", "generated", requests)
    if not Path(name).is_file():
        choices = ", ".join((*KNOWN_TRACES, GENERATED))
        raise TraceError(f"{name}: neither a file nor one of the known traces ({choices})")
    return Trace(Path(name).name, "file", read_mooncake(Path(name)))
