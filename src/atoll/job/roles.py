"""Jobs of programs with roles: a program, who plays each role, and (in a simulation) what each role holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.core.errors import Mismatch, nearest
from atoll.core.given import Part, folder_name, number, part
from atoll.core.program import Program
from atoll.job.catalogue import BadJob, Gate, build, plain, table
from atoll.programs.roles import MAX_ROUNDS, check_program_roles

KEYS = ("name", "rounds", "seed", "program", "roles", "data")
METHOD_KEYS = (
    "eval_every",
    "method",
    "select",
    "stages",
    "combine",
    "stop",
    "availability",
    "metrics",
    "phases",
    "train_loss",
    "extra_answers",
    "min_parties",
    "required",
)


@dataclass(frozen=True)
class RoleJob(Part):
    """A program with roles, and the party of each role. `atoll.simulate_roles(job)` runs it.

    Args:
        program: the program.
        roles: for each role, the name of its party, as in the roster; each party has one role. A role of many parties
            is that of the parties of its data, and this is a name for all of them.
        rounds: number of rounds, 1 or more. Default 1.
        seed: of all public randomness. Default 0.
        name: the first part of the name of the run folder. Default "job".
        data: for each role, the recipe of its data (`atoll.data.roles.read_role`; of a role of many parties that of a
            federation), for simulations only. Default: none.

    Example:
        >>> import atoll
        >>> job = atoll.RoleJob(atoll.JointMoments(), {"A": "bank", "B": "shop", "C": "notary"})
        >>> job.roles["C"]
        'notary'
    """

    program: Program
    roles: Mapping[str, str] = field(hash=False)
    rounds: int = 1
    seed: int = 0
    name: str = "job"
    data: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        part("program", self.program, Program)
        folder_name("name", self.name)
        object.__setattr__(self, "seed", number("seed", self.seed, least=None))
        object.__setattr__(self, "rounds", number("rounds", self.rounds))
        known = self.program.roles
        check_program_roles(self.program)
        named = isinstance(self.roles, Mapping) and all(isinstance(n, str) and n for n in self.roles.values())
        if not named or not isinstance(self.data, Mapping):
            wrong = "data" if named else "roles"
            raise Mismatch(f'{wrong} is a dict by role: name all roles in it, as in roles={{"A": "bank"}}')
        for key, said in (("roles", self.roles), ("data", self.data)):
            for role in said:
                if role not in known:
                    raise Mismatch(f"{key}.{role}: the program has no such role; {nearest(role, known)}")
        missing = [role for role in known if role not in self.roles]
        if missing:
            wanted = known[missing[0]]
            name = "a name for its parties" if wanted.many else "the name of a party"
            raise Mismatch(f'roles: nobody plays {missing[0]} ({wanted.about}): add {missing[0]} = "{name}"')
        names = list(self.roles.values())
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise Mismatch(f"roles: {twice[0]} plays two roles, and each hides something from the other: name two")
        if self.rounds > MAX_ROUNDS:
            raise Mismatch(f"rounds must be at most {MAX_ROUNDS:,}, got {self.rounds:,}")


def from_table(said: Mapping[str, object], gate: Gate | None = None) -> RoleJob:
    """Make a job with roles from what a file says. `gate` decides on parts of other packages, for a peer's text."""
    for key in said:
        if key in METHOD_KEYS:
            raise BadJob(f"{key}: this key is for a job with a method, and a program with roles has none: leave it out")
        if key not in KEYS:
            raise BadJob(f"{key}: a job with roles has no such key; {nearest(key, KEYS)}")
    if "program" not in said:
        raise BadJob('roles: a job with roles has a program: add one, as in program = "joint_moments"')
    rounds, name, seed = plain(said, "rounds", 1), plain(said, "name", "job"), plain(said, "seed", 0)
    roles, data = said.get("roles", {}), said.get("data", {})
    if not isinstance(roles, Mapping) or not all(isinstance(name, str) and name for name in roles.values()):
        raise BadJob('roles: say by name who plays each role, as in [roles] and A = "bank"')
    if not isinstance(data, Mapping) or not all(isinstance(recipe, Mapping) for recipe in data.values()):
        raise BadJob('data: say for each role what it holds, as in [data.A], path = "host.csv" and id = "idx"')
    program = build("program", said["program"], gate=gate)
    try:
        held = {role: dict(recipe) for role, recipe in data.items()}
        return RoleJob(program, dict(roles), rounds, seed, name, held)
    except ValueError as error:
        raise BadJob(str(error)) from None


def to_table(job: RoleJob, *, data: bool = True) -> dict[str, object]:
    """Say in a file's words what a job with roles is; without `data` as parties get it, who have their own."""
    said: dict[str, object] = {"name": job.name, "rounds": job.rounds, "seed": job.seed, "program": table(job.program)}
    said["roles"] = {role: job.roles[role] for role in job.program.roles}
    if data and job.data:
        said["data"] = {role: dict(recipe) for role, recipe in job.data.items()}
    return said
