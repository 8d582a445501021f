"""``make system``: the package, the unit and the helpers of mount(8) on a machine that systemd has booted.

The machine is fresh, its Python is Debian's, and the package is built from the sdist there. AWS is a server of this
process.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

from bench.s3server import LoopbackServer, MemoryObjects
from tests.docs.blocks import AWS_CONFIG, blocks_of
from tests.system.booted import Booted, copy_of_the_sources

_NAMES = ["part-00000.tfrecord", "part-00001.tfrecord"]
_PLACE = "/opt/ml/input/data/training"
_UNIT = "fastfuse@training.service"
# See docs/MEASUREMENTS.md, "The unit".
_MAX_EXPOSURE = 4.7

_ENV = """\
FASTFUSE_SOURCE=s3://my-bucket/train
FASTFUSE_METRICS_LISTEN=127.0.0.1:9567
FASTFUSE_ALLOW_OTHER=true
FASTFUSE_CACHE=/var/cache/fastfuse-data
"""
_READER = """\
[Unit]
Requires={before}
After={before}
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'ls {place} > /root/seen'
"""
_FSTAB = """\
s3://my-bucket/train  /mnt/one  fastfuse       ro,_netdev,allow_other,x-systemd.mount-timeout=60  0  0
s3://my-bucket/train  /mnt/two  fuse.fastfuse  ro,_netdev,noauto  0  0
"""
# Does what causes a line in the journal, and waits for it.
_UNTIL = """
cursor=$(journalctl --lines=1 --show-cursor --quiet | sed -n 's/^-- cursor: //p')
{cause}
exec 3< <(exec journalctl --follow --after-cursor="$cursor" --output=cat --unit={unit})
timeout 300 sed -u '/{text}/q' <&3
kill $!
"""


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f"{what}: {found!r}, not {wanted!r}")
    print(f"ok: {what}", flush=True)


def _until_mounted_again(machine: Booted, cause: str) -> str:
    return machine.run(_UNTIL.format(unit=_UNIT, cause=cause, text="^Started "))


def _shown(machine: Booted, place: str = _PLACE) -> list[str]:
    return machine.run(f"ls {place}").split()


def _properties(machine: Booted, *names: str) -> dict[str, str]:
    lines = machine.run(f"systemctl show {_UNIT} --property={','.join(names)}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def build_and_install(machine: Booted, sources: Path) -> None:
    """Install the sdist, then a wheel built from it, each into an environment of its own."""
    build = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, stdout=subprocess.DEVNULL)
    [sdist] = (sources / "dist").iterdir()
    (machine.files / "root" / sdist.name).write_bytes(sdist.read_bytes())
    [packages, *_] = [block.text for block in blocks_of("README.md") if block.heading == "Install"]
    machine.run("\n".join(line for line in packages.splitlines() if "apt-get" in line))
    machine.run(f"python3 -m venv /opt/fastfuse && /opt/fastfuse/bin/pip install --quiet /root/{sdist.name}")
    machine.run(f"/opt/fastfuse/bin/pip wheel --quiet --no-deps --wheel-dir /root/wheels /root/{sdist.name}")
    [wheel] = (machine.files / "root/wheels").iterdir()
    held = {
        name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith(".so") and ".dist-info/" not in name
    }
    listed = subprocess.run(["git", "ls-files", "fastfuse"], stdout=subprocess.PIPE, text=True, check=True).stdout
    _expect("the wheel holds what git has", held ^ {*listed.split()}, set())
    machine.run(f"python3 -m venv /opt/other && /opt/other/bin/pip install --quiet /root/wheels/{wheel.name}")
    machine.run("cd / && /opt/other/bin/fastfuse demo --shards 1 --shard-size 20MiB --small-files 100")
    machine.run("ln -sf /opt/fastfuse/bin/fastfuse /usr/local/bin/fastfuse && rm -rf /opt/other")


def install_files(machine: Booted) -> None:
    """Put the files of the system where they belong, twice."""
    first, second = machine.run("fastfuse install"), machine.run("fastfuse install")
    _expect("the second install changes nothing", second, first.replace("wrote    ", "unchanged"))
    machine.run("systemctl daemon-reload && systemd-analyze verify fastfuse@training.service fastfuse.target")
    machine.run("man --where fastfuse fastfuse-mount && man fastfuse-mount | grep -q -- --memory-target")
    machine.run(
        "source /usr/share/bash-completion/bash_completion; _completion_loader fastfuse || complete -p fastfuse"
    )
    [*_, last] = machine.run(f"systemd-analyze security --no-pager {_UNIT}").splitlines()
    exposure = float(last.split(":")[1].split()[0])
    _expect(f"exposure {exposure} is at most {_MAX_EXPOSURE}", exposure <= _MAX_EXPOSURE, True)


def start(machine: Booted, objects: MemoryObjects) -> None:
    """Start the unit through what depends on it, and refresh it."""
    (machine.files / "etc/fastfuse/training.env").write_text(_ENV)
    units = machine.files / "etc/systemd/system"
    (units / "reader.service").write_text(_READER.format(before=_UNIT, place=_PLACE))
    (units / "job.service").write_text(_READER.format(before="fastfuse.target", place=_PLACE))
    machine.run("systemctl daemon-reload; systemctl start reader.service")
    _expect("a unit that is ordered after the mount sees it", (machine.files / "root/seen").read_text().split(), _NAMES)
    machine.run("systemctl stop fastfuse@training; ! grep fuse.fastfuse /proc/mounts")
    machine.run("systemctl enable fastfuse@training; systemctl start job.service")
    _expect("fastfuse.target waits for the mount", (machine.files / "root/seen").read_text().split(), _NAMES)
    machine.run(f"setpriv --reuid=1 --regid=1 --clear-groups cat {_PLACE}/{_NAMES[0]}")
    owner = machine.run("stat --format=%U /var/cache/fastfuse-data/index.db").split()
    _expect("a cache that is new belongs to the worker's user", owner, ["nobody"])
    objects.put("train/new", b"new")
    machine.run("systemctl reload fastfuse@training")
    _expect("a reload shows what is new", _shown(machine), ["new", *_NAMES])
    objects.delete("train/new")
    machine.run("systemctl reload fastfuse@training")


def kill(machine: Booted) -> None:
    """Kill the worker, then the supervisor; then stop the supervisor for the watchdog."""
    [mount] = json.loads(machine.run("fastfuse status --json"))["mounts"]
    before = _properties(machine, "MainPID", "NRestarts")
    machine.run(f"kill -9 {mount['worker_pid']}; cat {_PLACE}/* > /dev/null")
    _expect("the mount outlives its worker", _properties(machine, "MainPID", "NRestarts"), before)
    _until_mounted_again(machine, f"kill -9 {before['MainPID']}")
    _expect("the supervisor is started again", _properties(machine, "NRestarts"), {"NRestarts": "1"})
    _expect("the dead mount is gone", machine.run("grep -c fuse.fastfuse /proc/mounts").split(), ["1"])
    _expect("the mount is back", _shown(machine), _NAMES)
    said = _until_mounted_again(machine, f"kill -STOP {_properties(machine, 'MainPID')['MainPID']}")
    _expect("the watchdog found the supervisor that was stopped", "Watchdog timeout" in said, True)
    _expect("and started another", _properties(machine, "NRestarts"), {"NRestarts": "2"})
    _expect("the mount is back", (_shown(machine), machine.run("grep -c fuse.fastfuse /proc/mounts")), (_NAMES, "1\n"))


def fail(machine: Booted) -> None:
    """Start an instance whose source is not there."""
    (machine.files / "etc/fastfuse/missing.env").write_text("FASTFUSE_SOURCE=s3://my-bucket/nothing/here\n")
    machine.run("! systemctl start fastfuse@missing")
    shown = machine.run("systemctl show fastfuse@missing --property=ExecMainStatus,NRestarts,ActiveState --value")
    _expect("a source that is not there is not tried again", sorted(shown.split()), ["0", "4", "failed"])
    machine.run("systemctl reset-failed fastfuse@missing")
    occupied = f"FASTFUSE_SOURCE=s3://my-bucket/train\nFASTFUSE_MOUNTPOINT={_PLACE}\n"
    (machine.files / "etc/fastfuse/occupied.env").write_text(occupied)
    machine.run("! systemctl start fastfuse@occupied; systemctl stop fastfuse@occupied")
    _expect("a mount that was there before a start that failed is left alone", _shown(machine), _NAMES)


def list_in_fstab(machine: Booted) -> None:
    """Mount both kinds of lines of fstab by mount(8) and by systemd."""
    with (machine.files / "etc/fstab").open("a") as fstab:
        fstab.write(_FSTAB)
    machine.run("mkdir -p /mnt/one /mnt/two; systemctl daemon-reload")
    for place in ("one", "two"):
        # Nothing of PATH is needed.
        machine.run(f"env -i /usr/bin/mount /mnt/{place}")
        _expect(f"mount /mnt/{place}", _shown(machine, f"/mnt/{place}"), _NAMES)
        machine.run(f"umount /mnt/{place}; systemctl start mnt-{place}.mount")
        _expect(f"systemctl start mnt-{place}.mount", _shown(machine, f"/mnt/{place}"), _NAMES)
        machine.run(f"systemctl stop mnt-{place}.mount; ! grep ' /mnt/{place} ' /proc/mounts")
    machine.run("mount -t fastfuse -o ro s3://my-bucket/train /mnt/two && umount /mnt/two")


def reboot(machine: Booted) -> None:
    """Boot again: what is enabled and what fstab has is mounted."""
    machine.halt()
    machine.boot()
    machine.run(f"systemctl start multi-user.target; systemctl is-active {_UNIT} mnt-one.mount")
    _expect("after a boot", (_shown(machine), _shown(machine, "/mnt/one")), (_NAMES, _NAMES))
    machine.run("systemctl stop fastfuse.target fastfuse@training mnt-one.mount; ! grep fuse.fastfuse /proc/mounts")


def remove(machine: Booted) -> None:
    """Take it all away but what was changed."""
    machine.run("echo '# mine' >> /usr/local/lib/systemd/system/fastfuse.target; fastfuse install --remove")
    left = machine.run("find /etc /usr -xdev -name '*fastfuse*' -not -path '/etc/systemd/*' | sort").split()
    kept = ["/etc/fastfuse", "/usr/local/bin/fastfuse", "/usr/local/lib/systemd/system/fastfuse.target"]
    _expect("only what was changed, or written by others, is left", left, kept)


def main() -> None:
    """Run every check; ends with what is wrong first."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastfuse-system-")))
        objects = MemoryObjects({f"train/{name}": name.encode() for name in _NAMES})
        server = stack.enter_context(LoopbackServer({"my-bucket": objects}))
        copy_of_the_sources(scratch / "sources")
        machine = stack.enter_context(Booted(scratch))
        (machine.files / "root/.aws").mkdir()
        (machine.files / "root/.aws/config").write_text(AWS_CONFIG.format(endpoint_url=server.endpoint_url))
        build_and_install(machine, scratch / "sources")
        install_files(machine)
        start(machine, objects)
        kill(machine)
        fail(machine)
        list_in_fstab(machine)
        reboot(machine)
        remove(machine)
    print("the package, the unit and fstab do what the pages say")


if __name__ == "__main__":
    main()
