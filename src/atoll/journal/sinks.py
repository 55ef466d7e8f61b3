"""Sinks: hand every note on to a tool that draws curves. The journal stays the record; nothing reads a sink back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from atoll.core.effects import Note
from atoll.core.errors import Mismatch, NotInstalled


def scalars(note: Note) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an evaluation or a round, named as `Run.curve` names them: test.accuracy, bytes_up."""
    if note.what not in ("evaluation", "round"):
        return
    split = f"{note.facts['split']}." if note.what == "evaluation" else ""
    for name, value in note.facts.items():
        if name not in ("round", "parties") and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{split}{name}", float(value)


def tensorboard(folder: str | Path) -> TensorBoard:
    """Write TensorBoard event files into a folder; needs neither torch nor tensorflow."""
    return TensorBoard(folder)


def mlflow(experiment: str, uri: str | None = None) -> MLflow:
    """Log to an MLflow experiment: on the server or in the store that `uri` names, else MLflow's own default."""
    return MLflow(experiment, uri)


class TensorBoard:
    """Takes notes and writes them as TensorBoard events."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer = EventFileWriter(str(folder))

    def __call__(self, note: Note) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        t = note.t
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(note)]
        if note.what == "start" and note.job:
            values.append(_text("job", note.job))
        if values:
            self._writer.add_event(Event(wall_time=time.time(), step=t, summary=Summary(value=values)))
        elif note.what == "resume":  # what came after round t is done again: readers drop the first time
            again = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=t + 1, session_log=again))
        if note.what == "end":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _text(tag: str, job: Mapping[str, object]) -> object:
    """Make a job file a text summary."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    text = json.dumps(job, indent=1)
    words = "".join(f"    {line}\n" for line in text.splitlines())  # indented: Markdown for "as it is"
    tensor = TensorProto(dtype="DT_STRING", string_val=[words.encode()])
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, tensor=tensor, metadata=plugin)


class MLflow:
    """Takes notes and logs them; a run of MLflow begins where a run starts or is resumed, and ends with it."""

    def __init__(self, experiment: str, uri: str | None = None) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise _missing("mlflow") from error
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        except MlflowException as error:
            remedy = (
                'name a tracking server, as in uri="http://127.0.0.1:5000", or install all of mlflow for a database'
            )
            raise Mismatch(f"MLflow cannot log to {uri or 'its default store'}; {remedy}") from error
        self.run: str | None = None  # MLflow's id of the run, also after its end
        self._open = False

    def __call__(self, note: Note) -> None:
        from mlflow.entities import Metric

        if note.what in ("start", "resume"):
            self.close()
            self.run, self._open = self._begin(note), True
        if not self._open:  # a runtime may note something before the run starts
            return
        t, now = note.t, int(time.time() * 1000)
        found = [Metric(name, value, now, t) for name, value in scalars(note)]
        if found:
            self._client.log_batch(self.run, metrics=found)
        if note.what == "end":
            self._client.set_tag(self.run, "reason", str(note.facts.get("reason", "")))
            self._client.set_terminated(self.run, "FINISHED")
            self._open = False

    def _begin(self, note: Note) -> str:
        from mlflow.entities import Param

        job = note.job
        begun = self._client.create_run(self._experiment, run_name=job.get("name"))
        run: str = begun.info.run_id
        if note.what == "resume":
            self._client.set_tag(run, "resumed after round", str(note.t))
        said = [Param(key, str(value)[:500]) for key, value in _flat(job)]
        if said:
            self._client.log_batch(run, params=said[:100])  # as many as MLflow takes
        return run

    def close(self) -> None:
        """End a run that noted no end of its own."""
        if self._open:
            self._client.set_terminated(self.run, "KILLED")
            self._open = False


def _flat(table: Mapping[str, object], under: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value


def _missing(extra: str) -> NotInstalled:
    return NotInstalled(f"{extra} is not installed: pip install 'atoll[{extra}]'")
