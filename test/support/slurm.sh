#!/bin/bash
# slurm.sh HOSTS COMMAND...: runs a command beside a Slurm of its own; in a world only (world.sh)
#
# HOSTS, as h1,h2, are its nodes; the controller is on this host. Its key, state, logs and
# configuration are in a folder of the world's, and it ends with the world. What belongs to the user's
# own Slurm is neither read nor written. For those inside:
#
#   SLURM_CONF   the configuration, by which srun, salloc, sbatch find it
#
# WORLD_SLURM='LaunchParameters=use_interactive_step' adds a line to it.
#
# Nothing but Slurm leads to other hosts: the remote shell of the world is taken away.
set -euo pipefail
nodes=$1
shift
PATH=$PATH:/usr/sbin
unset "${!SLURM_@}" PRTE_MCA_plm_ssh_agent OMPI_MCA_plm_rsh_agent

say() { echo "slurm.sh: $*" >&2; }

fail() {
  say "$1"
  grep -hE 'error|fatal|Error' ./*.log >&2 || true
  exit 1
}

folder=$(mktemp -d "$TMPDIR/slurm.XXXXXX")
chmod 755 "$folder"  # munged insists
cd "$folder"
mkdir state
for host in ${nodes//,/ }; do mkdir "tmp-$host"; done

(umask 077 && head -c 64 /dev/urandom > munge.key)
munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --num-threads=2 \
  --pid-file="$folder/munge.pid" --seed-file="$folder/munge.seed" \
  --log-file="$folder/munge.log" || fail "munged does not start"

cat > slurm.conf <<END_OF_CONF
ClusterName=world
SlurmctldHost=$(hostname)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
TmpFS=$folder/tmp-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
KillWait=2
MpiDefault=none
NodeName=$nodes CPUs=4
PartitionName=all Nodes=$nodes Default=YES State=UP
${WORLD_SLURM:-}
END_OF_CONF
export SLURM_CONF=$folder/slurm.conf

slurmctld || fail "slurmctld does not start"
for host in ${nodes//,/ }; do on "$host" slurmd || fail "slurmd does not start on $host"; done

end=$((SECONDS + 60))
until [ "$(sinfo -h -N -o %T 2> sinfo.log | sort -u)" = idle ]; do
  ((SECONDS < end)) || fail "the nodes are not ready after 60 s: $(sinfo -N 2>&1)"
  sleep 0.05  # nothing tells when they are
done
cd /
exec "$@"
