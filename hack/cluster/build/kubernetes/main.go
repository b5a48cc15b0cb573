// Command kube is every Kubernetes program that a test cluster runs, linked once.
//
// It looks at the name it was started by (kube-apiserver, kubelet, kubectl, ...), so that
// six links to one file stand for six programs: one link step instead of six, and one
// text segment in memory for all of them.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps each name to the command it stands for; a command is made only when asked
// for, because making one registers its flags with process-wide sets.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	command, known := programs[name]
	if !known {
		names := make([]string, 0, len(programs))
		for each := range programs {
			names = append(names, each)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "kube: no program is named %q; start this file by one of these names: %s\n",
			name, strings.Join(names, ", "))
		os.Exit(2)
	}
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(command()); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(command()))
}
