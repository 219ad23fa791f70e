# Builds a module in /build for a kernel's release from Debian's packages, in a root that holds these. The
# arguments are the release, the module's folder in drivers/infiniband, the option of its configuration and, if the
# architecture is foreign, the prefix of its compiler's name.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp LC_ALL=C
ln -sf mawk /usr/bin/awk # installing mawk would do this
mkdir /build
cd /build
tar -xf /usr/src/linux-source-*.tar.xz --strip-components=5 --wildcards "*/drivers/infiniband/$2"
# Without this fix of docs/upstream/erdma-cq-lock.md, the machine stops by chance.
if [ "$2" = hw/erdma ] && grep -q xa_lock_irqsave erdma_verbs.h; then
	sed -i -E 's/\bxa_(alloc_cyclic|erase)\(&dev->(qp|cq)_xa/xa_\1_irq(\&dev->\2_xa/' erdma_verbs.c
fi
make -j$(nproc) -C /usr/src/linux-headers-$1 M=$PWD $3=m ${4:+CROSS_COMPILE=$4} modules
