# Builds /build/siw.ko for a kernel's release from Debian's packages, in a root that holds these.
# If the architecture is foreign, the second argument is the prefix of its compiler's name.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp LC_ALL=C
ln -sf mawk /usr/bin/awk # installing mawk would do this
mkdir /build
cd /build
tar -xf /usr/src/linux-source-*.tar.xz --strip-components=5 --wildcards '*/drivers/infiniband/sw/siw'
make -j$(nproc) -C /usr/src/linux-headers-$1 M=$PWD CONFIG_RDMA_SIW=m ${2:+CROSS_COMPILE=$2} modules
