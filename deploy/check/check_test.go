// Package check_test decodes the files of deploy/ into the types of those who read them: of Kubernetes, and of Compose. A module of its own, so
// that these types stay out of Surefoot's.
package check_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// drain is the default of shutdown.timeout, in seconds.
const drain = 25

// The whole of compose.yaml, with every profile.
func TestComposeLoads(t *testing.T) {
	t.Parallel()
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithProfiles([]string{"*"}), cli.WithName("surefoot"))
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	names := project.ServiceNames()
	slices.Sort(names)
	require.Equal(t, []string{"broker", "database", "migrate", "provider", "shop", "shop-migrate", "surefoot", "topology"}, names)
	for name, service := range project.Services {
		if service.Build != nil {
			_, err := os.Stat(filepath.Join(service.Build.Context, service.Build.Dockerfile))
			require.NoError(t, err, name)
		}
		for _, volume := range service.Volumes {
			if volume.Type == "bind" {
				_, err := os.Stat(volume.Source)
				require.NoError(t, err, name)
			}
		}
	}
	for _, name := range []string{"surefoot", "shop"} {
		require.Greater(t, time.Duration(*project.Services[name].StopGracePeriod), drain*time.Second, name)
	}
}

// KEDA's types, as far as they are used; its own module would bring all of its scalers.
type (
	scaledObject struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			ScaleTargetRef                                   struct{ Name string }
			MinReplicaCount, MaxReplicaCount, CooldownPeriod int
			Triggers                                         []struct {
				Type              string
				Metadata          map[string]string
				AuthenticationRef struct{ Name string }
			}
		}
	}
	triggerAuthentication struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			SecretTargetRef []struct{ Parameter, Name, Key string }
		}
	}
	kustomization struct {
		APIVersion, Kind, Namespace string
		Resources                   []string
		ConfigMapGenerator          []struct {
			Name  string
			Files []string
		}
		GeneratorOptions struct{ DisableNameSuffixHash bool }
		Images           []struct{ Name, NewName, NewTag string }
	}
)

// object is what a document must be decoded into.
func object(kind string) any {
	switch kind {
	case "apps/v1 Deployment":
		return &appsv1.Deployment{}
	case "policy/v1 PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return &autoscalingv2.HorizontalPodAutoscaler{}
	case "batch/v1 Job":
		return &batchv1.Job{}
	case "batch/v1 CronJob":
		return &batchv1.CronJob{}
	case "v1 Namespace":
		return &corev1.Namespace{}
	case "v1 ServiceAccount":
		return &corev1.ServiceAccount{}
	case "keda.sh/v1alpha1 ScaledObject":
		return &scaledObject{}
	case "keda.sh/v1alpha1 TriggerAuthentication":
		return &triggerAuthentication{}
	case "kustomize.config.k8s.io/v1beta1 Kustomization":
		return &kustomization{}
	}
	return nil
}

// objects decodes every document of deploy/kubernetes strictly: a field that its type does not have is an error.
func objects(t *testing.T) map[string]any {
	t.Helper()
	var files []string
	for _, pattern := range []string{"../kubernetes/*.yaml", "../kubernetes/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	all := map[string]any{}
	for _, file := range files {
		if filepath.Base(file) == "surefoot.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			var head struct {
				APIVersion, Kind string
				Metadata         struct{ Name string }
			}
			require.NoError(t, yaml.Unmarshal(document, &head), file)
			into := object(head.APIVersion + " " + head.Kind)
			require.NotNil(t, into, "%s: %s %s", file, head.APIVersion, head.Kind)
			require.NoError(t, yaml.UnmarshalStrict(document, into), file)
			name := head.Metadata.Name
			if name == "" {
				name = file
			}
			all[head.Kind+" "+name] = into
		}
	}
	return all
}

func TestKubernetesDecodesStrictly(t *testing.T) {
	t.Parallel()
	all := objects(t)
	for name, o := range all {
		switch o := o.(type) {
		case *appsv1.Deployment:
			requireRole(t, name, o.Spec.Template.Spec)
			require.Equal(t, o.Spec.Selector.MatchLabels, o.Spec.Template.Labels, name)
			budget, is := all["PodDisruptionBudget "+o.Name].(*policyv1.PodDisruptionBudget)
			require.True(t, is, "%s has no disruption budget", name)
			require.Equal(t, o.Spec.Selector, budget.Spec.Selector, name)
		case *batchv1.Job:
			requireTask(t, name, o.Spec.Template.Spec)
		case *batchv1.CronJob:
			requireTask(t, name, o.Spec.JobTemplate.Spec.Template.Spec)
		case *autoscalingv2.HorizontalPodAutoscaler:
			require.Contains(t, all, "Deployment "+o.Spec.ScaleTargetRef.Name, name)
		case *scaledObject:
			require.Contains(t, all, "Deployment "+o.Spec.ScaleTargetRef.Name, name)
			require.Contains(t, all, "TriggerAuthentication "+o.Spec.Triggers[0].AuthenticationRef.Name, name)
		case *kustomization:
			for _, resource := range o.Resources {
				_, err := os.Stat(filepath.Join(filepath.Dir(strings.TrimPrefix(name, "Kustomization ")), resource))
				require.NoError(t, err, name)
			}
		}
	}
	topology, is := all["Job surefoot-topology"].(*batchv1.Job)
	require.True(t, is)
	for _, variable := range topology.Spec.Template.Spec.Containers[0].Env {
		require.NotEqual(t, "SUREFOOT_DATABASE_URL_FILE", variable.Name, "its secret has none, and a file that is missing is a fault")
	}
	redrive, is := all["Job surefoot-redrive"].(*batchv1.Job)
	require.True(t, is)
	require.Contains(t, redrive.Spec.Template.Spec.Containers[0].Args, "--yes", "nobody is there to be asked")
}

// requireRole: probes on the port of the probes, and a grace period longer than the drain.
func requireRole(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	requirePod(t, name, pod)
	c := pod.Containers[0]
	require.Greater(t, *pod.TerminationGracePeriodSeconds, int64(drain), name)
	require.Equal(t, int32(9464), c.Ports[0].ContainerPort, name)
	require.Equal(t, "/livez", c.LivenessProbe.HTTPGet.Path, name)
	require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path, name)
	require.Equal(t, c.Ports[0].Name, c.LivenessProbe.HTTPGet.Port.StrVal, name)
	require.Equal(t, c.Ports[0].Name, c.ReadinessProbe.HTTPGet.Port.StrVal, name)
}

func requireTask(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	requirePod(t, name, pod)
	require.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy, name)
}

// requirePod: nothing that the namespace's "restricted" would refuse, and every mount has its volume.
func requirePod(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	require.True(t, *pod.SecurityContext.RunAsNonRoot, name)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, name)
	require.False(t, *pod.AutomountServiceAccountToken, name)
	c := pod.Containers[0]
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, name)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, name)
	for _, mount := range c.VolumeMounts {
		require.True(t, slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name }), "%s: %s", name, mount.Name)
	}
}

// Where kubectl is installed, its kustomize renders every directory.
func TestKustomizeRenders(t *testing.T) {
	t.Parallel()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl is not installed: the directories are decoded, but not rendered")
	}
	for _, dir := range []string{"../kubernetes", "../kubernetes/tasks", "../kubernetes/scaling"} {
		out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "namespace: surefoot")
	}
}
