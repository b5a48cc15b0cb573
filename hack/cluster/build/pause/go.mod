module disagg.dev/hack/cluster/pause

go 1.24.0
