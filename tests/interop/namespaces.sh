#!/bin/sh
# Installs what brokers on a network of namespaces need: ip, nft, and etcd.
set -e
"$(dirname "$0")/etcd.sh"
command -v ip > /dev/null && command -v nft > /dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends iproute2 nftables > /dev/null
nft --version
