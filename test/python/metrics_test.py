"""HORON_METRICS_FILE: what the ranks of a job leave for Prometheus, read as strictly as its text
format (0.0.4) is meant."""

import re

import pytest
from conftest import in_full_tier

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
ROW = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (-?\d+)")


def read(text):
    """Values by name and labels. Every family has a description and a type, once and before its
    rows, and all its rows together."""
    assert text.endswith("\n"), text[-80:]
    types, described, values, last = {}, {}, {}, None
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line):
            assert match[1] not in described, line
            described[match[1]] = match[2]
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            assert match[1] in described and match[1] not in types, line
            types[match[1]] = match[2]
            last = match[1]
        else:
            match = ROW.fullmatch(line)
            assert match and match[1] == last, line
            assert (types[last] == "counter") == last.endswith("_total"), line
            labels = tuple(re.findall(LABEL, match[2]))
            assert len({one.split("=")[0] for one in labels}) == len(labels), line
            assert (last, labels) not in values, line
            values[last, labels] = int(match[3])
    assert set(types) == set(described) == {name for name, _ in values}
    undescribed = [name for name, words in described.items() if words == "Not described."]
    assert not undescribed, undescribed
    return values


@pytest.mark.parametrize("np, launcher, nodes", [
    (4, "horonrun", None), (4, "mpirun", "2"),
    pytest.param(2, "horonrun", None, marks=in_full_tier),
    pytest.param(2, "mpirun", "1", marks=in_full_tier),
])
def test_all_counters_of_a_job_are_there(launch, tmp_path, needs_mpi, np, launcher, nodes):
    """Of a job that uses collectives, windows and averages of pairs."""
    variables = {"HORON_METRICS_FILE": str(tmp_path / "rank-{rank}.prom"),
                 "HORON_METRICS_PERIOD_SECONDS": "0.02"}
    if nodes:
        variables["HORON_LOCAL_SIZE"] = nodes
    out = launch(np, "windows", "metrics", launcher=launcher, env=variables)
    for rank in range(np):
        values = read((tmp_path / f"rank-{rank}.prom").read_text(encoding="utf-8"))
        own = [value for (name, labels), value in values.items() if f'rank="{rank}"' in labels]
        assert len(own) == len(values)
        by_name = {name: value for (name, labels), value in values.items() if len(labels) == 2}
        assert by_name["horon_running"] == 0 and by_name["horon_ranks"] == np
        said = dict(re.findall(rf"^counter {rank} (\S+) (\d+)$", out, re.MULTILINE))
        for counter in ("executor.tensors", "executor.bytes", "window.given"):
            assert by_name[f"horon_{counter.replace('.', '_')}_total"] == int(said[counter]) > 0
        edges = {name.rsplit(".", 1)[1]: int(value) for name, value in said.items()
                 if name.startswith("peer.bytes.to.")}
        found = {label.split('"')[1]: value for (name, labels), value in values.items()
                 if name == "horon_peer_bytes_to_total" for label in labels
                 if label.startswith("peer=")}
        assert found == edges and edges
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank-{r}.prom" for r in range(np)]


def test_a_file_that_cannot_be_written_ends_the_job_with_its_name(launch_script, tmp_path):
    script = tmp_path / "init.py"
    script.write_text("import horon.torch as hvd\nhvd.init()\n")
    out = launch_script(2, script, may_fail=True,
                        env={"HORON_METRICS_FILE": "/nowhere/{rank}.prom"})
    assert "HORON_METRICS_FILE: /nowhere/0.prom cannot be written: No such file" in out, out


def test_what_the_parser_refuses():
    """It is to find what a job must not write."""
    good = '# HELP a_total x\n# TYPE a_total counter\na_total{rank="0"} 1\n'
    assert read(good) == {("a_total", ('rank="0"',)): 1}
    for bad in (good[:-1], good * 2, good.replace("HELP", "HLP"), good.replace("_total", ""),
                good.replace('"0"', "0"), good + 'a_total{rank="0"} 2\n',
                good.replace(" 1\n", " 1.\n"), good.replace("x\n", "Not described.\n"),
                good + 'b_total{rank="0"} 2\n'):
        with pytest.raises(AssertionError):
            read(bad)
