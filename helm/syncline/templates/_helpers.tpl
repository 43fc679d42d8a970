{{/*
Names, labels and addresses. All templates use these, so that selectors, services and flags agree.
A scope is (dict "root" $ "component" "server"): the chart and one part of it.
*/}}

{{- define "syncline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters leave room for "-coordinator-0" and a StatefulSet's hash in a 63-character label. */}}
{{- define "syncline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels that select pods. They must never change while a release exists. */}}
{{- define "syncline.selectorLabels" -}}
app.kubernetes.io/name: {{ include "syncline.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* All labels of a resource. Takes a scope. */}}
{{- define "syncline.labels" -}}
{{ include "syncline.selectorLabels" .root }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: syncline
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "syncline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "syncline.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "syncline.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Full DNS name of a service of this release. Takes (list $ "name"). */}}
{{- define "syncline.serviceHost" -}}
{{- $root := index . 0 }}
{{- printf "%s.%s.svc.%s" (index . 1) $root.Release.Namespace $root.Values.clusterDomain }}
{{- end }}

{{/* All coordinators, each by its own name: clients find the one that leads. */}}
{{- define "syncline.coordinatorPods" -}}
{{- $headless := printf "%s-coordinator" (include "syncline.fullname" .) }}
{{- $host := include "syncline.serviceHost" (list . $headless) }}
{{- $pods := list }}
{{- range $i := until (int .Values.coordinator.replicas) }}
{{- $pods = append $pods (printf "%s-%d.%s:7070" $headless $i $host) }}
{{- end }}
{{- join "," $pods }}
{{- end }}

{{/* The coordinator's address for servers. It resolves before the coordinator is ready, so that all may start at once. */}}
{{- define "syncline.coordinatorPeer" -}}
{{- $headless := printf "%s-coordinator" (include "syncline.fullname" .) }}
{{- if gt (int .Values.coordinator.replicas) 1 }}
{{- include "syncline.coordinatorPods" . }}
{{- else }}
{{- printf "%s:7070" (include "syncline.serviceHost" (list . $headless)) }}
{{- end }}
{{- end }}

{{/* The coordinator's address for clients. */}}
{{- define "syncline.coordinatorClient" -}}
{{- if gt (int .Values.coordinator.replicas) 1 }}
{{- include "syncline.coordinatorPods" . }}
{{- else }}
{{- printf "%s:7070" (include "syncline.serviceHost" (list . (include "syncline.fullname" .))) }}
{{- end }}
{{- end }}

{{/*
Engine threads of a server: the setting, or the whole cores of its CPU limit or request, because the process itself sees
all cores of its node. Empty if none of them is set.
*/}}
{{- define "syncline.engineThreads" -}}
{{- $server := .Values.server }}
{{- if $server.engineThreads }}
{{- int $server.engineThreads }}
{{- else }}
{{- $resources := default dict $server.resources }}
{{- $request := get (default dict $resources.requests) "cpu" }}
{{- $cpu := toString (default (default "" $request) (get (default dict $resources.limits) "cpu")) }}
{{- if hasSuffix "m" $cpu }}
{{- max 1 (div (int64 (trimSuffix "m" $cpu)) 1000) }}
{{- else if $cpu }}
{{- max 1 (int64 (floor (float64 $cpu))) }}
{{- end }}
{{- end }}
{{- end }}
