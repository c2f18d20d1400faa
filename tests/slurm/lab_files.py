"""Templates of the test cluster's configuration; SlurmLab fills in `{dir}`, `{host}`, `{password}` and the ports."""

from __future__ import annotations

NODES = ("n1", "n2", "n3", "n4")

# cred_expire is also the time that a requeued job waits before it may start again: 10 s instead of 120.
# config_overrides lets a node claim more CPUs than the machine has. ReturnToService=1: a node that died returns to
# service by itself, a node that was set down by hand stays down. Intervals are short because tests wait for the
# scheduler. NoInAddrAny is not set: an srun inside n1 would listen on 127.0.1.1 only, and its peers connect to
# 127.0.0.1. So slurmd, srun and slurmdbd listen on all addresses; munge's key, new for every lab, keeps others out.
SLURM_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/run/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
PlugStackConfig={dir}/etc/plugstack.conf
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=1
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0,bf_interval=2,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PreemptExemptTime=0
JobRequeue=1
SlurmdTimeout=10
SlurmctldTimeout=30
InactiveLimit=0
KillWait=3
OverTimeLimit=0
MinJobAge=300
WaitTime=0
CompleteWait=0
MessageTimeout=10
TCPTimeout=2
MaxJobCount=20000
MaxArraySize=2001
GresTypes=gpu
ScronParameters=enable
NodeName=n[1-4] NodeHostname=n[1-4] NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=8 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 OverSubscribe=NO
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE OverSubscribe=NO GraceTime=0
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF OverSubscribe=NO
"""

# AccountingStoragePass: clients of slurmdbd take munge's socket from here and not from AuthInfo.
SLURM_CONF_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={dir}/run/munge.socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=0
"""

SLURM_CONF_PLAIN = """\
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={dir}/run/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
DebugLevel=info
LogFile={dir}/log/slurmdbd.log
PidFile={dir}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadb_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""

DATABASE_SQL = """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
"""
