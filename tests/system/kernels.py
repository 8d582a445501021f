"""``make kernels``: the tests to which the kernel matters, on older kernels than this machine's.

QEMU boots each of Debian's kernels from one image, a fresh Debian with these sources. It emulates the processor, which
is ten times slower, but works inside of virtual machines. A wait of a test may be too short for that: run a test that
fails again alone before you believe it.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.system.booted import CERTIFICATES, copy_of_the_sources

_PLACE = ROOT / "build/kernels"
_MIRROR = "http://deb.debian.org/debian"
_SUITES = f"""\
deb {_MIRROR} bookworm main
deb [trusted=yes] {_MIRROR}-security bullseye-security main
"""
# The newest of each, as cloud images have it. QEMU 7.2 does not boot 6.12.
_KERNELS = ("5.10", "6.1")
_INSTALL_KERNEL = """\
name=$(apt-cache pkgnames linux-image-{version}. | grep 'cloud-amd64$' | sort --version-sort | tail -1)
apt-get install -q -y --no-install-recommends "$name"
"""
_PACKAGES = (
    "fuse3 gcc initramfs-tools iproute2 kmod libc6-dev libfuse3-dev libssl-dev libxxhash-dev make openssl pkg-config "
    "python3 python3-dev python3-venv systemd udev"
)
_MODULES = "virtio_pci virtio_blk ext4"
# QEMU emulates AVX wrongly: numpy compares wrong with it (QEMU 7.2).
_PROCESSOR = "Nehalem"
_TESTS = (
    "tests/semantics",
    "tests/reading/test_bytes.py",
    *(f"tests/filesystem/test_{topic}.py" for topic in ("interposed", "session", "supervisor")),
)
_INIT = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sysfs /sys 2> /dev/null; mount -t devtmpfs dev /dev 2> /dev/null
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts
for place in /dev/shm /run /tmp; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup; ip link set lo up; modprobe fuse; modprobe loop
mount -t fusectl fusectl /sys/fs/fuse/connections
echo "127.0.0.1 localhost" > /etc/hosts
cd /src; uname -r > /dev/ttyS1
.venv/bin/pytest -p no:cacheprovider -n 2 -v --tb=short {tests} > /dev/ttyS1 2>&1; echo "ended with $?" > /dev/ttyS1
sync; echo o > /proc/sysrq-trigger; sleep 60
"""


def _in_root(root: Path, script: str) -> None:
    binds = [f"--bind-ro={CERTIFICATES}", f"--setenv=PIP_CERT={CERTIFICATES}"]
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe", *binds, f"--directory={root}"]
    subprocess.run([*command, "sh", "-ec", script], check=True, stdout=subprocess.DEVNULL)


def _made_root() -> Path:
    """Return a Debian with the kernels and what the tests need."""
    root = _PLACE / "root"
    if root.exists():
        return root
    unfinished = _PLACE / "root.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    _PLACE.mkdir(parents=True, exist_ok=True)
    make = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(unfinished), _MIRROR]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    (unfinished / "etc/apt/sources.list").write_text(_SUITES)
    _in_root(unfinished, f"apt-get update -q; apt-get install -q -y --no-install-recommends {_PACKAGES}")
    tools = unfinished / "etc/initramfs-tools"
    (tools / "conf.d/modules").write_text("MODULES=list\n")
    (tools / "modules").write_text("\n".join(_MODULES.split()))
    for version in _KERNELS:
        _in_root(unfinished, _INSTALL_KERNEL.format(version=version))
    unfinished.rename(root)
    return root


def main() -> int:
    """Test on each kernel; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.kernels", description=__doc__)
    parser.add_argument("--only", default="*", choices=("*", *_KERNELS), help="one of these kernels")
    parser.add_argument("tests", nargs="*", default=_TESTS)
    options = parser.parse_args()
    root = _made_root()
    sources = root / "src"
    shutil.rmtree(sources, ignore_errors=True)
    copy_of_the_sources(sources)
    # Compiled, for each start of Python took 40 s otherwise.
    _in_root(root, "cd /src; make PYTHON=python3 .venv/.dev; .venv/bin/python -m compileall -q bench fastfuse tests")
    (root / "init-tests").write_text(_INIT.format(tests=" ".join(options.tests)))
    (root / "init-tests").chmod(0o755)
    image = _PLACE / "image"
    image.unlink(missing_ok=True)
    subprocess.run(["mkfs.ext4", "-q", "-d", str(root), str(image), "8G"], check=True)
    failed = []
    for kernel in sorted((root / "boot").glob(f"vmlinuz-{options.only}.*")):
        name = kernel.name.removeprefix("vmlinuz-")
        print(f"== {name}", flush=True)
        machine = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", _PROCESSOR, "-smp", "2", "-m", "4096"]
        start = ["-kernel", str(kernel), "-initrd", str(kernel.with_name(f"initrd.img-{name}"))]
        words = "root=/dev/vda rw init=/init-tests console=ttyS0 panic=-1"
        disk = ["-drive", f"file={image},if=virtio,format=raw,snapshot=on"]
        ports = ["-nodefaults", "-nographic", "-no-reboot", "-serial", "null", "-serial", "stdio"]
        done = subprocess.Popen([*machine, *start, "-append", words, *disk, *ports], stdout=subprocess.PIPE, text=True)
        assert done.stdout is not None
        line = ""
        for line in done.stdout:
            print(line, end="", flush=True)
        if done.wait() or line.strip() != "ended with 0":
            failed.append(name)
    print(f"failed on: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
