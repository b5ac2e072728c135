#!/bin/sh
# Installs ZooKeeper, through which brokers can choose their master; Debian's package does not start it here.
set -e
test -e /usr/share/zookeeper/bin/zkServer.sh && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends zookeeper > /dev/null
