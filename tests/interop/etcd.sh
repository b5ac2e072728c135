#!/bin/sh
# Installs etcd, through which brokers choose their master; Debian's package does not start it here.
set -e
command -v etcd > /dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends etcd-server > /dev/null
etcd --version | head -n 1
