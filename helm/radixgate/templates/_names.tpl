{{/* At most 44 characters: Kubernetes adds a hash to a StatefulSet's name and puts both into one label of 63. */}}
{{- define "radixgate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of an object that never change. Takes (list $ "component"). */}}
{{- define "radixgate.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object. Takes (list $ "component" [further labels]). Neither they nor commonLabels replace the chart's own. */}}
{{- define "radixgate.labels" -}}
{{- $root := index . 0 -}}
{{- $own := include "radixgate.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "radixgate" -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63) -}}
{{- toYaml (merge $own (include "radixgate.furtherLabels" . | fromYaml)) -}}
{{- end -}}

{{/* Labels of pods, as above. They contain no versions, which change with every chart and would restart every pod. */}}
{{- define "radixgate.podLabels" -}}
{{- $own := include "radixgate.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "radixgate" -}}
{{- toYaml (merge $own (include "radixgate.furtherLabels" . | fromYaml)) -}}
{{- end -}}

{{- define "radixgate.furtherLabels" -}}
{{- $given := dict -}}
{{- if gt (len .) 2 -}}
{{- $given = default dict (index . 2) -}}
{{- end -}}
{{- toYaml (merge (deepCopy $given) (index . 0).Values.commonLabels) -}}
{{- end -}}

{{/* An image's name. Takes (list $ image). A digest identifies the exact image; a tag at least names a release. */}}
{{- define "radixgate.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "radixgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "radixgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}
