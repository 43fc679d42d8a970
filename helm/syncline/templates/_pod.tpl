{{/*
Templates that all pods of the chart share.
*/}}

{{/* Account, security and scheduling of a pod. Takes (dict "root" $ "part" .Values.server). */}}
{{- define "syncline.podSettings" -}}
serviceAccountName: {{ include "syncline.serviceAccountName" .root }}
automountServiceAccountToken: false
# Without this, a service named "syncline" adds variables such as SYNCLINE_PORT to the
# environment.
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
terminationGracePeriodSeconds: {{ .part.terminationGracePeriodSeconds }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .part.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- if .part.hostNetwork }}
hostNetwork: true
# Without this, a pod on the node's network does not find the services of the cluster.
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Spreads the pods of a part over nodes and zones. Takes (dict "root" $ "component" "server" "part" .Values.server). */}}
{{- define "syncline.spread" -}}
{{- if or .part.spreadAcrossNodes .part.spreadAcrossZones }}
topologySpreadConstraints:
  {{- range $key, $how := dict "kubernetes.io/hostname" .part.spreadAcrossNodes "topology.kubernetes.io/zone" .part.spreadAcrossZones }}
  {{- if $how }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $how }}
    labelSelector:
      matchLabels:
        {{- include "syncline.selectorLabels" $.root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Metadata of a pod. An upgrade that changes the settings must restart servers, but one that changes only the chart must
not, so the chart's version is not among the labels. Takes (dict "root" $ "component" "server" "part" .Values.server).
*/}}
{{- define "syncline.podMetadata" -}}
annotations:
  checksum/config: {{ include "syncline.settings" .root | sha256sum }}
  {{- with .part.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{ include "syncline.podLabels" . }}
{{- end }}

{{/* Labels of a pod. Takes the same as podMetadata. */}}
{{- define "syncline.podLabels" -}}
labels:
  {{- include "syncline.selectorLabels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  app.kubernetes.io/part-of: syncline
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Security context of a container, with the capabilities of its part. Takes (dict "root" $ "part" .Values.server). */}}
{{- define "syncline.containerSecurity" -}}
{{- $context := deepCopy .root.Values.containerSecurityContext }}
{{- with .part.addCapabilities }}
{{- $capabilities := default dict $context.capabilities }}
{{- $added := concat (default list $capabilities.add) . | uniq }}
{{- $context = set $context "capabilities" (set $capabilities "add" $added) }}
{{- end }}
{{- toYaml $context }}
{{- end }}

{{/* Settings that every Syncline process reads from its environment. config.env overrides them. */}}
{{- define "syncline.settings" -}}
{{- with .Values.config }}
{{- $settings := dict
      "SYNCLINE_FAILURE_TIMEOUT" .failureTimeout
      "SYNCLINE_LOG_FORMAT" .logFormat
      "SYNCLINE_DATA_PLANE_PORTS" (printf "%d-%d" (int .dataPorts.first) (int .dataPorts.last)) }}
{{- toYaml (merge (deepCopy .env) $settings) }}
{{- end }}
{{- end }}

{{- define "syncline.envFrom" -}}
envFrom:
  - configMapRef:
      name: {{ include "syncline.fullname" . }}
{{- end }}

{{/*
The secret with the certificate of a role; empty if the role may be without one. Takes (list $ "server").
*/}}
{{- define "syncline.tlsSecret" -}}
{{- $root := index . 0 }}
{{- $role := index . 1 }}
{{- $tls := $root.Values.tls }}
{{- if $tls.certManager.enabled }}
{{- printf "%s-%s-tls" (include "syncline.fullname" $root) $role }}
{{- else if get $tls.existingSecrets $role }}
{{- get $tls.existingSecrets $role }}
{{- else if ne $role "test" }}
{{- fail (printf "tls.enabled needs tls.certManager.enabled, or tls.existingSecrets.%s" $role) }}
{{- end }}
{{- end }}

{{- define "syncline.tlsMount" -}}
{{- if .Values.tls.enabled -}}
- name: tls
  mountPath: /etc/syncline/tls
  readOnly: true
{{- end }}
{{- end }}

{{/* The volume of that secret. Takes (list $ "server"). */}}
{{- define "syncline.tlsVolume" -}}
{{- if (index . 0).Values.tls.enabled -}}
- name: tls
  secret:
    secretName: {{ include "syncline.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* The list of revoked certificates. Only the coordinator reads it. */}}
{{- define "syncline.revokedVolume" -}}
{{- with .Values.tls.revokedSecret -}}
{{- if not $.Values.tls.enabled }}
{{- fail "tls.revokedSecret needs tls.enabled: without certificates there is nothing to take back" }}
{{- end -}}
- name: revoked
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* Protocol of the admin port: https, or http without certificates or with admin.plain. */}}
{{- define "syncline.adminScheme" -}}
{{- ternary "https" "http" (and .Values.tls.enabled (not .Values.admin.plain)) }}
{{- end }}

{{/* The token that readers of the admin port must show. */}}
{{- define "syncline.adminVolume" -}}
{{- with .Values.admin.tokenSecret -}}
- name: admin
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "syncline.checkpointClaim" -}}
{{- default (printf "%s-checkpoints" (include "syncline.fullname" .)) .Values.checkpoints.existingClaim }}
{{- end }}

{{/*
The bucket of checkpoints; empty if there is none, or if the values come from an older release without this setting (helm
upgrade --reuse-values). Takes $.
*/}}
{{- define "syncline.bucket" -}}
{{- default "" (default dict .Values.checkpoints.s3).bucket }}
{{- end }}

{{- define "syncline.checkpointMount" -}}
{{- if and .Values.checkpoints.enabled (not (include "syncline.bucket" .)) -}}
- name: checkpoints
  mountPath: /checkpoints
{{- end }}
{{- end }}

{{- define "syncline.checkpointVolume" -}}
{{- if and .Values.checkpoints.enabled (not (include "syncline.bucket" .)) -}}
- name: checkpoints
  persistentVolumeClaim:
    claimName: {{ include "syncline.checkpointClaim" . }}
{{- end }}
{{- end }}

{{- define "syncline.checkpointDir" -}}
{{- with include "syncline.bucket" . -}}
s3://{{ . }}{{ with $.Values.checkpoints.s3.prefix }}/{{ . }}{{ end }}
{{- else -}}
/checkpoints
{{- end }}
{{- end }}

{{/* Environment for a bucket: credentials, region and endpoint. */}}
{{- define "syncline.checkpointEnv" -}}
{{- if and .Values.checkpoints.enabled (include "syncline.bucket" .) -}}
{{- with .Values.checkpoints.s3 -}}
{{- $secret := required "checkpoints.s3.bucket needs checkpoints.s3.credentialsSecret: a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" .credentialsSecret -}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: AWS_SECRET_ACCESS_KEY}}
- name: AWS_SESSION_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: AWS_SESSION_TOKEN, optional: true}}
{{- with .region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .endpoint }}
- name: AWS_ENDPOINT_URL_S3
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment that tells a client process its certificates. */}}
{{- define "syncline.tlsEnv" -}}
{{- if .Values.tls.enabled -}}
- name: SYNCLINE_TLS_CERT
  value: /etc/syncline/tls/tls.crt
- name: SYNCLINE_TLS_KEY
  value: /etc/syncline/tls/tls.key
- name: SYNCLINE_TLS_CA
  value: /etc/syncline/tls/ca.crt
{{- end }}
{{- end }}

{{/*
The container of a long-running service. Takes (dict "root" $ "component" "server" "part"
.Values.server "args" (list …)), where args are the flags that only this role has.
*/}}
{{- define "syncline.serviceContainer" -}}
name: {{ .component }}
image: {{ include "syncline.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "syncline.containerSecurity" . | nindent 2 }}
args:
  - serve
  - --role={{ .component }}
  {{- if eq .component "coordinator" }}
  - --listen=0.0.0.0:7070
  {{- end }}
  - --admin-listen=0.0.0.0:7071
  - --advertise=$(POD_NAME).{{ include "syncline.serviceHost" (list .root (printf "%s-%s" (include "syncline.fullname" .root) .component)) }}:7070
  {{- if ne .component "coordinator" }}
  - --state-dir=/var/lib/syncline
  {{- end }}
  {{- range .args }}
  - {{ . }}
  {{- end }}
  {{- if .root.Values.checkpoints.enabled }}
  - --checkpoint-dir={{ include "syncline.checkpointDir" .root }}
  {{- end }}
  {{- if .root.Values.tls.enabled }}
  - --tls-cert=/etc/syncline/tls/tls.crt
  - --tls-key=/etc/syncline/tls/tls.key
  - --tls-ca=/etc/syncline/tls/ca.crt
  {{- else }}
  - --insecure
  {{- end }}
  {{- if .root.Values.admin.plain }}
  - --admin-plain
  {{- end }}
  {{- if .root.Values.admin.tokenSecret }}
  - --admin-token-file=/etc/syncline/admin/token
  {{- end }}
  {{- if and (eq .component "coordinator") .root.Values.tls.revokedSecret }}
  - --revoked=/etc/syncline/revoked/revoked
  {{- end }}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  {{- with include "syncline.checkpointEnv" .root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{ include "syncline.envFrom" .root }}
ports:
  {{- if eq .component "coordinator" }}
  - name: control
    containerPort: 7070
  {{- end }}
  - name: admin
    containerPort: 7071
{{- with .root.Values.probes }}
startupProbe:
  httpGet: {path: /livez, port: admin, scheme: {{ include "syncline.adminScheme" $.root | upper }}}
  periodSeconds: {{ .startup.periodSeconds }}
  failureThreshold: {{ .startup.failureThreshold }}
  timeoutSeconds: {{ .startup.timeoutSeconds }}
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ include "syncline.adminScheme" $.root | upper }}}
  periodSeconds: {{ .readiness.periodSeconds }}
  failureThreshold: {{ .readiness.failureThreshold }}
  timeoutSeconds: {{ .readiness.timeoutSeconds }}
livenessProbe:
  httpGet: {path: /livez, port: admin, scheme: {{ include "syncline.adminScheme" $.root | upper }}}
  periodSeconds: {{ .liveness.periodSeconds }}
  failureThreshold: {{ .liveness.failureThreshold }}
  timeoutSeconds: {{ .liveness.timeoutSeconds }}
{{- end }}
resources:
  {{- toYaml .part.resources | nindent 2 }}
volumeMounts:
  - name: state
    mountPath: /var/lib/syncline
  - name: tmp
    mountPath: /tmp
  - name: shm
    mountPath: /dev/shm
  {{- if and (eq .component "server") .root.Values.server.journal.enabled }}
  - name: journal
    mountPath: /journal
  {{- end }}
  {{- include "syncline.tlsMount" .root | nindent 2 }}
  {{- if and (eq .component "coordinator") .root.Values.tls.revokedSecret }}
  - name: revoked
    mountPath: /etc/syncline/revoked
    readOnly: true
  {{- end }}
  {{- if and (eq .component "coordinator") .part.etcd.endpoints .part.etcd.tlsSecret }}
  - name: etcd
    mountPath: /etc/syncline/etcd
    readOnly: true
  {{- end }}
  {{- if .root.Values.admin.tokenSecret }}
  - name: admin
    mountPath: /etc/syncline/admin
    readOnly: true
  {{- end }}
  {{- include "syncline.checkpointMount" .root | nindent 2 }}
  {{- with .part.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
