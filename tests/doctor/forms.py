"""The ways in which people write credentials into texts, and a cluster with one in every field that has text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TEXTS = """
password={s}
password: {s}
the password is {s}
password "{s}"
passwd {s}
pwd={s}
pw={s}
--password={s}
--password {s}
'--token', '{s}'
["--password","{s}"]
password == {s}
password => "{s}"
passwd "{s}"
password = "correct {s} battery"
password: 'it''s {s}'
password = "hun,ter;{s}"
"password": "a\\"b{s}"
<password>{s}</password>
machine x login bob password {s}
docker login -p {s}
sshpass -p {s} ssh u@h
mysql -u root -p{s} db
["mysql","-p{s}"]
mysqldump --password={s} x
docker login -u $oauthtoken -p {s} nvcr.io
redis-cli -a {s} ping
redis-cli -h r -p 6379 -a {s}
["redis-cli","-a","{s}"]
mongosh -u a -p {s}
ldapsearch -w {s}
smbclient //h/s -U u%{s}
zip -P {s} a
wandb login {s}
vault login {s}
huggingface-cli login --token {s}
hf auth login --token={s}
curl -u bob:{s} https://x
curl -ubob:{s} https://x
HF_KEY={s}
curl -H "apikey: {s}" x
openssl -passin pass:{s}
PGPASSWORD={s} psql
REDISCLI_AUTH={s} x
NGC_API_KEY={s}
export HF_TOKEN='{s}'
set WANDB_API_KEY "{s}"
LICENSE_KEY={s}
aws_secret_access_key={s}
aws_session_token = {s}
api_key {s}
apikey: {s}
API key {s}
license key {s}
Using HF token {s}
token {s}
Token: {s}
with token '{s}'
auth_token={s}
credential {s}
credentials: {s}
client_secret={s}
secret={s}
"secretKey": "{s}"
signing_key={s}
encryption-key: {s}
private_key: {s}
AccountKey={s}==;EndpointSuffix=x
SharedAccessKey={s}=
"token":"{s}"
{{"auths":{{"nvcr.io":{{"auth":"{s}=="}}}}}}
Authorization: Bearer {s}
Authorization: Basic {s}==
authorization: token {s}
Authorization: {s}
Bearer {s}
bearer: {s}
X-Api-Key: {s}
x-auth-token: {s}
X-Vault-Token: {s}
Cookie: sid={s}
Set-Cookie: session={s}; Path=/
https://user:{s}@example.com/x
redis://:{s}@h:6379/0
http://user:p@ss@word/{s}@proxy
http://user:pass/{s}@proxy:3128
DATABASE_URL=mysql://a:{s}@h/d
git clone https://{s}@github.com/a/b
https://x/y?access_token={s}
https://x/y?api_key={s}&x=1
https://x/y?key={s}
https://x/y?sv=2020&sig={s}
https://hooks.slack.com/services/T00/B00/{s}
hf_{s}{s}
sk-{s}{s}
sk-proj-{s}{s}
ghp_{s}{s}
github_pat_{s}{s}
glpat-{s}{s}
nvapi-{s}{s}
xoxb-{s}{s}
npm_{s}{s}
pypi-{s}{s}
AIza{s}{s}
ya29.{s}{s}
eyJ{s}.{s}.{s}
-----BEGIN RSA PRIVATE KEY----- {s} -----END RSA PRIVATE KEY-----
PASSWORD+={s}
password -> {s}
passwordHash: {s}
next=%2F%3Ftoken%3D{s}
"password\\u003d{s}"
aws configure set aws_secret_access_key {s}
set WANDB_API_KEY {s}
"apiKeys": ["a", "{s}"]
{{"name":"HF_TOKEN","value":"{s}"}}
- name: DB_PASSWORD value: {s}
EnvVar{{Name:HF_TOKEN,Value:{s},ValueFrom:nil,}}
{{"m":"{{\\"m\\":\\"{{\\\\\\"password\\\\\\":\\\\\\"{s}\\\\\\"}}\\"}}"}}
serve --dsn root:{s}@tcp(mysql:3306)/db
https:\\/\\/bob:{s}@example.com
proxy=bob:{s}@proxy:3128
jupyter lab --NotebookApp.token {s}
mc alias set m http://minio:9000 admin {s}
["mc","alias","set","m","http://minio:9000","admin","{s}"]
echo "root:{s}" | chpasswd
hvs.{s}{s}
gsk_{s}{s}
r8_{s}{s}
tskey-auth-{s}{s}
xapp-1-{s}{s}
{{"adminPass": "{s}"}}
{{\\"adminPass\\":\\"{s}\\"}}
adminPwd={s}
creds: {s}
creds: bob:{s}
dbCreds: "bob:{s}"
MASTER_CREDS={s}
DEFAULT_ADMIN_PASSCODE={s}
TF_VAR_LOGIN={s}
dbLogin: {s}
set MASTER_CREDS {s}
credentials={s}
"basicAuth": "{s}"
--admin-passcode {s}
--db-creds={s}
--adminPass {s}
connectionString="Server=h;Uid=a;Pwd={s};"
CONNECTION_STRING=Server=h;Pwd={s}
- name: adminPass value: {s}
- name: DB_CREDS value: {s}
bob:$apr1$Ab3dEf9h${s}{s}
bob:$2y$10${s}{s}{s}
$6$rounds=5000$Ab3dEf9h${s}{s}{s}
bob:$$2b$$10$${s}{s}
bob:{{SHA}}{s}{s}=
$argon2id$v=19$m=65536,t=3,p=4${s}${s}
""".strip().splitlines()
"""``{s}`` stands for the credential, of 16 letters and digits or more, with both."""

ABOUT = {"kind": "Pod", "namespace": "ml", "name": "train"}
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def cluster_with(say: Callable[[], str], secret: str) -> list[dict[str, Any]]:
    """Objects with what ``say`` gives in every field that has text; ``secret`` alone stands under telling names."""

    def metadata(name: str, namespace: str = "ml") -> dict[str, Any]:
        return {
            "name": name, "namespace": namespace,
            "labels": {"token": secret, "app": "x"},
            "annotations": {"token": secret, "example.com/설명": say(), "note": say()},
        }  # fmt: skip

    def container(name: str) -> dict[str, Any]:
        return {
            "name": name, "image": "cuda", "resources": GPU, "command": ["sh", "-c", say()], "args": [say(), *say().split()],
            "env": [{"name": "SETTING", "value": say()}, {"name": "NCCL_X", "value": say()}, {"name": "HF_TOKEN", "value": secret}],
            "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": secret}]}},
        }  # fmt: skip

    def pod_spec() -> dict[str, Any]:
        return {
            "nodeName": "gpu-1", "initContainers": [container("init")], "containers": [container("main")],
            "nodeSelector": {"token": secret}, "hostAliases": [{"ip": "1.2.3.4", "hostnames": [say()]}],
            "volumes": [{"name": "v", "nfs": {"server": say(), "path": say()}}, {"name": "c", "csi": {"driver": "d", "volumeAttributes": {"p": secret}}}],
        }  # fmt: skip

    def conditions(*types: str) -> list[dict[str, Any]]:
        return [{"type": one, "status": "False", "reason": "X", "message": say()} for one in types]

    def state(word: str) -> dict[str, Any]:
        return {"waiting": {"reason": word, "message": say()}}

    template = {"metadata": metadata(""), "spec": pod_spec()}
    selector = {"matchLabels": {"token": secret}}
    return [
        {"kind": "Node", "metadata": metadata("gpu-1", ""), "spec": {}, "status": {
            "capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "0"},
            "conditions": conditions("Ready", "GpuUnhealthy")}},
        {"kind": "Pod", "metadata": metadata("train"), "spec": pod_spec(), "status": {
            "phase": "Pending", "message": say(), "conditions": conditions("Ready"),
            "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 1, "message": say()}}}],
            "containerStatuses": [{"name": "main", "restartCount": 5, "state": state("CrashLoopBackOff"), "lastState": {"terminated": {"exitCode": 1, "message": say()}}}]}},
        {"kind": "Pod", "metadata": metadata("wait"), "spec": {**pod_spec(), "nodeName": ""}, "status": {
            "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": say()}]}},
        *({"kind": kind, "metadata": metadata(kind.lower()), "spec": {
            "selector": selector, "template": template, "volumeClaimTemplates": [{"metadata": metadata("data")}],
        }, "status": {"conditions": conditions("Failed")}}
          for kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job")),
        {"kind": "CronJob", "metadata": metadata("c"), "spec": {"jobTemplate": {"metadata": metadata(""), "spec": {"template": template}}}},
        {"kind": "Event", "metadata": metadata("e"), "involvedObject": ABOUT, "type": "Warning", "reason": "Failed", "message": say()},
        {"kind": "Event", "metadata": metadata("f"), "regarding": ABOUT, "type": "Warning", "reason": "FailedMount", "note": say()},
        {"kind": "ConfigMap", "metadata": metadata("cm"), "data": {"a.conf": say(), "API_KEY": secret}},
        {"kind": "Secret", "metadata": metadata("s"), "data": {"x": secret}, "stringData": {"y": say()}},
        {"kind": "ClusterPolicy", "metadata": metadata("cp", ""), "spec": {"driver": {"env": [{"name": "X", "value": say()}], "args": [say()]}, "password": secret}, "status": {"conditions": conditions("Ready")}},
        {"kind": "Cluster", "metadata": metadata("other"), "spec": {"deep": [{"text": say(), "authToken": secret}]}, "status": {"x": say()}},
        {"kind": "PersistentVolume", "metadata": metadata("pv", ""), "spec": {"nfs": {"server": say()}, "csi": {"volumeAttributes": {"secret": secret}}}},
        {"kind": "PodLog", "metadata": {"namespace": "ml", "name": "train"}, "container": "main", "previous": True,
         "lines": ["-----BEGIN RSA PRIVATE KEY-----", secret * 4, secret * 4, "-----END RSA PRIVATE KEY-----", say(), say()]},
        {"kind": "PodLog", "metadata": {"namespace": "ml", "name": "wait"}, "container": "main", "lines": [secret * 4, "-----END RSA PRIVATE KEY-----", say()]},
        {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "kernelLog": [say()], "commandLine": say(), "files": {"/etc/x": {"text": say()}}},
    ]  # fmt: skip
