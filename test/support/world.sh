#!/bin/bash
# world.sh HOSTS COMMAND...: runs a command on host h1 of a throw-away network of hosts h1, h2, ...
#
# Each host is a network and a host name (namespaces) on one bridge, 10.77.0.1, 10.77.0.2, ...; files,
# process ids and the clock are common. Needs no root, no sshd and no daemon. All of it, running
# processes too, is gone when the command ends or when this script is killed; the exit code is the
# command's. For those inside:
#
#   on HOST COMMAND...    runs a command on a host
#   WORLD_SHELL           a remote shell, as ssh is one: WORLD_SHELL [options] HOST COMMAND...
#
# WORLD_RATE=1gbit shapes each host's link, both ways (WORLD_BURST, WORLD_LATENCY go with it), and
# WORLD_RATE_3=100mbit that of h3. WORLD_CONGESTION is TCP's congestion control between hosts: cubic,
# as Linux has it, if this kernel does; "none" is the kernel's own default.
set -euo pipefail

enter() {  # again, inside namespaces of our own, which die with this process
  local as_root=() world code=0
  [ "$(id -u)" = 0 ] || as_root=(--user --map-root-user)
  WORLD_INSIDE=1 env --default-signal=INT,QUIT setpriv --pdeathsig KILL \
    unshare "${as_root[@]}" --net --mount --uts --ipc --pid --fork --kill-child=KILL \
    --mount-proc "$(readlink -f "$0")" "$@" <&0 &
  world=$!
  trap 'kill -KILL $world' HUP TERM  # unshare takes neither
  trap : INT                         # a terminal tells those inside, too
  while kill -0 "$world" 2>/dev/null; do
    code=0
    wait "$world" || code=$?
  done
  exit "$code"
}

private_files() {
  mount --make-rprivate /
  mount -t tmpfs world /run
  mount -t tmpfs -o mode=1777 world /dev/shm
  mkdir -p /run/netns /run/world/bin /run/world/tmp
  export TMPDIR=/run/world/tmp
}

name_hosts() {
  { echo "127.0.0.1 localhost"
    for i in $(seq "$1"); do echo "10.77.0.$i h$i"; done; } > /run/world/hosts
  mount --bind /run/world/hosts /etc/hosts
}

shape() {  # number of the host, device, in the namespace that the other arguments of tc name
  local own=WORLD_RATE_$1
  local rate=${!own:-${WORLD_RATE:-none}}
  [ "$rate" = none ] && return
  tc "${@:3}" qdisc add dev "$2" root tbf rate "$rate" \
    burst "${WORLD_BURST:-256kb}" latency "${WORLD_LATENCY:-50ms}"
}

congestion() {  # number of the host
  local usual=cubic
  grep -qw $usual /proc/sys/net/ipv4/tcp_available_congestion_control || usual=none
  local algorithm=${WORLD_CONGESTION:-$usual}
  [ "$algorithm" = none ] && return
  ip -n "h$1" route change 10.77.0.0/24 dev eth0 proto kernel scope link src "10.77.0.$1" \
    congctl "$algorithm"
}

add_host() {
  local host=h$1
  ip netns add "$host"
  ip link add "port$1" type veth peer name eth0 netns "$host"
  ip link set "port$1" master bridge0 up
  ip -n "$host" addr add "10.77.0.$1/24" dev eth0
  ip -n "$host" link set lo up
  ip -n "$host" link set eth0 up
  congestion "$1"
  shape "$1" eth0 -n "$host"
  shape "$1" "port$1"
  touch "/run/world/$host.uts"
  unshare --uts="/run/world/$host.uts" hostname "$host"
}

add_commands() {
  cat > /run/world/bin/on <<'END'
#!/bin/sh
host=$1; shift
[ -e "/run/world/$host.uts" ] || { echo "no host $host in this world" >&2; exit 255; }
exec nsenter --uts="/run/world/$host.uts" --net="/run/netns/$host" "$@"
END
  cat > /run/world/bin/remote_shell <<'END'
#!/bin/sh
while case $1 in -*) true;; *) false;; esac; do shift; done
host=$1; shift
exec on "$host" /bin/sh -c "$*"
END
  chmod +x /run/world/bin/on /run/world/bin/remote_shell
  export PATH="/run/world/bin:$PATH" WORLD_SHELL=/run/world/bin/remote_shell
}

settings() {  # what Open MPI cannot know: that all these hosts are one machine
  export PRTE_MCA_plm_ssh_agent=$WORLD_SHELL OMPI_MCA_plm_rsh_agent=$WORLD_SHELL
  export OMPI_MCA_mpi_yield_when_idle=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

[ "${WORLD_INSIDE:-}" = 1 ] || enter "$@"
unset WORLD_INSIDE
hosts=$1
shift
private_files
name_hosts "$hosts"
ip link add bridge0 type bridge
ip link set bridge0 up
ip link set lo up
for i in $(seq "$hosts"); do add_host "$i"; done
add_commands
settings
code=0
on h1 "$@" || code=$?
exit $code
