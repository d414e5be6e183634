{{/* Fields that all pods share. Takes (list $ values-of-the-component ["asks"]): with the last, the pod may ask the cluster's API. */}}
{{- define "radixgate.pod" -}}
{{- $root := index . 0 -}}
{{- $of := index . 1 -}}
serviceAccountName: {{ include "radixgate.serviceAccountName" $root }}
automountServiceAccountToken: {{ and (gt (len .) 2) (eq (include "radixgate.asksCluster" $root) "yes") }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $of.podSecurityContext | nindent 2 }}
{{- with $of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.extraPodSpec }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Values of a pod that runs the gateway's image for a moment: the gateway's, with the additions of its own. Takes
(list $ values-of-the-component).
*/}}
{{- define "radixgate.briefPod" -}}
{{- toYaml (merge (dict "extraPodSpec" (index . 1).extraPodSpec) (omit (index . 0).Values.gateway "extraPodSpec")) -}}
{{- end -}}

{{/* Spread pods if possible; a hard rule would leave pods unscheduled in a small cluster. */}}
{{- define "radixgate.spread" -}}
{{- $of := index . 1 -}}
topologySpreadConstraints:
{{- if $of.topologySpreadConstraints }}
  {{- toYaml $of.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- $selector := include "radixgate.selector" (list (index . 0) (index . 2)) }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Certificates of listeners: {existingSecret} by the name of the listener. */}}
{{- define "radixgate.listenerTls" -}}
{{- $tls := deepCopy .Values.gateway.tls -}}
{{- if .Values.gateway.endpointPicker.enabled -}}
{{- $_ := set $tls "picker" .Values.gateway.endpointPicker.tls -}}
{{- end -}}
{{- toYaml $tls -}}
{{- end -}}

{{- define "radixgate.claimSpec" -}}
accessModes:
  {{- toYaml .accessModes | nindent 2 }}
{{- with .storageClassName }}
storageClassName: {{ ternary "" . (eq . "-") | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{/* The containers that run before the gateway, one after the other; empty if there are none. */}}
{{- define "radixgate.initContainers" -}}
{{- if include "radixgate.demo" . }}
{{ include "radixgate.demoKeyContainer" . }}
{{- end }}
{{- if eq .Values.database.upgrade "init" }}
{{ include "radixgate.upgradeContainer" . }}
{{- end }}
{{- with .Values.gateway.extraInitContainers }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volumes that the gateway's program sees. */}}
{{- define "radixgate.gatewayMounts" -}}
- {name: config, mountPath: /etc/radixgate, readOnly: true}
- {name: state, mountPath: /var/lib/radixgate}
- {name: tmp, mountPath: /tmp}
{{- if include "radixgate.demo" . }}
- {name: run, mountPath: /run/radixgate, readOnly: true}
{{- end }}
{{- range $listener, $tls := include "radixgate.listenerTls" . | fromYaml }}
{{- if $tls.existingSecret }}
- {name: tls-{{ $listener }}, mountPath: /etc/radixgate-tls/{{ $listener }}, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.gateway.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
