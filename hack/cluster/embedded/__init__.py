"""A real Kubernetes inside one network namespace: no Docker, no virtual machine, no download but Go modules.

One *state folder* is one cluster. Everything that a cluster is called or owns is derived from the path of that
folder (`names`), every process it runs carries that path in its environment (`processes`), so two clusters never
touch each other and a cluster is found, repaired and removed without a list of process ids that could be stale.

A cluster is:

- a network namespace, joined to the host by one veth pair and one route (`network`);
- etcd, kube-apiserver, controller manager, scheduler, kube-proxy and CoreDNS as processes in it (`controlplane`);
- one mount and host-name namespace for each node, in which a containerd and a kubelet run (`nodes`);
- fake GPUs on the nodes (`fakegpu`) and, on request, nodes without a kubelet (`kwok`).

`lifecycle` orders these steps; `cli` is what a person types.
"""
