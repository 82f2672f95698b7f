PRAGMA application_id = 1466322279;
PRAGMA user_version = 9;
BEGIN TRANSACTION;
CREATE TABLE bus_positions(
  bus TEXT NOT NULL,
  topic TEXT NOT NULL,
  part INTEGER NOT NULL,
  position INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(bus, topic, part)
) WITHOUT ROWID, STRICT;
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "confirmed" VALUES(7,'[[1,[[5,1795642528980216145,[{"step":[1,"confirmed"]}]]]]]',4088702905);
INSERT INTO "confirmed" VALUES(16,'[[4,[[2,1795642529122119987,[{"step":[0,"confirmed"]}]]]],[5,[[2,1795642529128305182,[{"step":[0,"confirmed"]}]]]]]',3862699294);
INSERT INTO "confirmed" VALUES(37,'[[10,[[2,1795642529284317062,[{"step":[0,"confirmed"]}]]]],[11,[[2,1795642529284321569,[{"step":[0,"confirmed"]}]]]],[12,[[2,1795642529284314759,[{"step":[0,"confirmed"]}]]]],[13,[[2,1795642529284319015,[{"step":[0,"confirmed"]}]]]]]',2900543755);
INSERT INTO "confirmed" VALUES(40,'[[9,[[5,1795642529297377922,[{"step":[1,"confirmed"]}]]]],[10,[[5,1795642529304391282,[{"step":[1,"confirmed"]}]]]],[11,[[5,1795642529304364022,[{"step":[1,"confirmed"]}]]]]]',330189306);
INSERT INTO "confirmed" VALUES(50,'[[14,[[6,1795642529333354871,[{"step":[1,"confirmed"]}]]]]]',1908571159);
INSERT INTO "confirmed" VALUES(58,'[[16,[[12,1795642529422166192,[{"step":[2,"confirmed"]}]]]],[17,[[3,1795642529428188464,[{"step":[0,"confirmed"]}]]]]]',1064313733);
INSERT INTO "confirmed" VALUES(62,'[[19,[[3,1795642529468141204,[{"step":[0,"confirmed"]}]]]]]',2123919697);
INSERT INTO "confirmed" VALUES(65,'[[20,[[2,1795642529522767748,[{"step":[0,"confirmed"]}]]]]]',3168307207);
INSERT INTO "confirmed" VALUES(66,'[[21,[[2,1795642529529141435,[{"step":[0,{"leased":{"delivery":1,"until":1795642867027938081}}]}]]]]]',2707208321);
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(5,X'3A15DA5D129D3983A08F3DBF6B5EB956484256C630AE47427D533A004C241518','{"name":"timed","graphs":[{"name":"timed","steps":[{"name":"slow","queue":"slow","timeout":311040000000}]}]}');
INSERT INTO "definitions" VALUES(6,X'8D8DBEFD8F29DCD3AFF569B92D9A90FD4734FBE1E4738DFDE9938C1A6F245D61','{"name":"lent","bus":"embedded","graphs":[{"name":"lent","steps":[{"name":"held","queue":"held","bus":"embedded"}]}]}');
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO "derived" VALUES(66);
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
, confirms TEXT, origin TEXT) STRICT;
INSERT INTO "entries" VALUES(1,1,0,1795642528952034542,'[{"job":{"created":{"message":{"n":1,"large":12345678901234567890}}}},{"step":[0,{"started":{"attempt":1}}]}]',3366747606,NULL,'["00000000-0000-4000-8000-000000000001",1,0,1,null,null,null,0,1795642528950874977]');
INSERT INTO "entries" VALUES(2,2,0,1795642528964032617,'[{"job":{"created":{"message":{"n":2}}}},{"step":[0,{"started":{"attempt":1}}]}]',1675664157,NULL,'["00000000-0000-4000-8000-000000000002",1,0,2,null,null,null,0,1795642528960398221]');
INSERT INTO "entries" VALUES(4,1,3,1795642528964133057,'[{"step":[0,{"completed":{"n":1.1}}]},{"step":[1,{"started":{"attempt":1}}]}]',2144692642,'[[2,1795642528964111365,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(5,2,3,1795642528980148003,'[{"step":[0,{"completed":{"n":2}}]},{"step":[1,{"started":{"attempt":1}}]}]',1307562478,'[[2,1795642528980077378,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(6,2,6,1795642529000035275,'[{"step":[1,{"completed":{"n":2}}]},{"step":[2,{"started":{"attempt":1}}]}]',3539785075,'[[5,1795642528992018127,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(8,2,9,1795642529023149409,'[{"step":[2,{"completed":{"sum":6}}]},{"job":"completed"}]',28811675,'[[8,1795642529012025498,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(9,3,0,1795642529056070986,'[{"job":{"created":{"message":{"n":3}}}},{"step":[0,{"started":{"attempt":1}}]}]',1878555863,NULL,'["00000000-0000-4000-8000-000000000003",1,0,3,null,null,null,0,1795642529049794835]');
INSERT INTO "entries" VALUES(10,3,3,1795642529062631531,'[{"step":[0,{"completed":{"n":3}}]},{"step":[1,{"started":{"attempt":1}}]}]',58563459,'[[2,1795642529062435799,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(12,3,6,1795642529088828143,'[{"step":[1,{"completed":{"n":3}}]},{"step":[2,{"started":{"attempt":1}}]}]',1412616546,'[[5,1795642529068197011,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(13,3,9,1795642529110645463,'[{"step":[2,{"failed":{"reason":"the worker reported an error: no"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: no","step":2}}}]',2323060499,'[[8,1795642529096284113,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(14,4,0,1795642529116954873,'[{"job":{"created":{"message":{"n":4}}}},{"step":[0,{"started":{"attempt":1}}]}]',2113213365,NULL,'["00000000-0000-4000-8000-000000000004",1,0,4,null,null,null,0,1795642529116931919]');
INSERT INTO "entries" VALUES(15,5,0,1795642529121584138,'[{"job":{"created":{"message":{}}}},{"step":[0,{"started":{"attempt":1}}]}]',962776733,NULL,'["00000000-0000-4000-8000-000000000011",2,0,5,null,null,null,0,1795642529121560693]');
INSERT INTO "entries" VALUES(17,5,3,1795642529145638244,'[{"step":[0,{"completed":{"sections":["x", "y"],"title":"t"}}]},{"fan_out":[1,{"started":{"items":2}}]},{"fan_out":[1,{"children_started":{"from":0,"count":2}}]}]',1183989701,'[[2,1795642529128305182,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(18,6,0,1795642529146369375,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2904980017,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000000",2,1,5,5,1,0,1,1795642529146337287]');
INSERT INTO "entries" VALUES(19,7,0,1795642529146433150,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3801997941,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000001",2,1,5,5,1,1,1,1795642529146426640]');
INSERT INTO "entries" VALUES(20,6,3,1795642529173425378,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3755514053,'[[2,1795642529156321999,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(22,6,6,1795642529195106866,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1505573582,'[[5,1795642529176671109,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(23,7,3,1795642529195206044,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',4183614373,'[[2,1795642529156368248,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(24,5,6,1795642529200174935,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 1, "good": true}]}}]}]',4268825995,NULL,NULL);
INSERT INTO "entries" VALUES(25,7,6,1795642529221138842,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1663242026,'[[5,1795642529204265626,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(26,5,7,1795642529224110565,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 1, "good": true}]}}]},{"fan_out":[1,"completed"]},{"step":[2,{"started":{"attempt":1}}]}]',1259673517,NULL,NULL);
INSERT INTO "entries" VALUES(27,5,11,1795642529242754592,'[{"step":[2,{"completed":{"kg":2}}]},{"job":"completed"}]',1079171297,'[[10,1795642529232316464,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(28,8,0,1795642529244687695,'[{"job":{"created":{"message":{"from":"a client"}}}},{"step":[0,{"started":{"attempt":1}}]}]',3247884293,NULL,'["00000000-0000-4000-8000-000000000010",2,0,8,null,null,null,0,1795642529244665863]');
INSERT INTO "entries" VALUES(30,8,3,1795642529273212730,'[{"step":[0,{"completed":{"sections":[1, 2, 3, 4, 5],"title":"t"}}]},{"fan_out":[1,{"started":{"items":5}}]},{"fan_out":[1,{"children_started":{"from":0,"count":5}}]}]',3694112705,'[[2,1795642529252233410,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(31,9,0,1795642529276479923,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1831976302,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000000",2,1,8,8,1,0,1,1795642529276217652]');
INSERT INTO "entries" VALUES(32,10,0,1795642529276541555,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',4191530131,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000001",2,1,8,8,1,1,1,1795642529276251873]');
INSERT INTO "entries" VALUES(33,11,0,1795642529276551660,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',4228719095,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000002",2,1,8,8,1,2,1,1795642529276254607]');
INSERT INTO "entries" VALUES(34,12,0,1795642529276571610,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1257136298,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000003",2,1,8,8,1,3,1,1795642529276256470]');
INSERT INTO "entries" VALUES(35,13,0,1795642529276575295,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1767490788,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000004",2,1,8,8,1,4,1,1795642529276259544]');
INSERT INTO "entries" VALUES(36,9,3,1795642529294734269,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2411171564,'[[2,1795642529284289040,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(38,10,3,1795642529295738867,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1182838192,'[[2,1795642529284317062,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(39,11,3,1795642529296185083,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2826797569,'[[2,1795642529284321569,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(41,9,6,1795642529322453402,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',1858724465,'[[5,1795642529297377922,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(42,10,6,1795642529322524438,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',3143617995,'[[5,1795642529304391282,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(43,14,0,1795642529322902712,'[{"job":{"created":{"message":{"n":5}}}},{"step":[0,{"started":{"attempt":1}}]}]',468570009,NULL,'["00000000-0000-4000-8000-000000000005",1,0,14,null,null,null,0,1795642529322824826]');
INSERT INTO "entries" VALUES(44,8,6,1795642529324287507,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 2, "good": true}]}}]}]',153403489,NULL,NULL);
INSERT INTO "entries" VALUES(45,8,7,1795642529324299305,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 2, "good": true}]}}]}]',3563701388,NULL,NULL);
INSERT INTO "entries" VALUES(46,14,3,1795642529330843145,'[{"step":[0,{"completed":{"n":5}}]},{"step":[1,{"started":{"attempt":1}}]}]',3376422488,'[[2,1795642529329960909,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(47,14,5,1795642529331284473,'[{"job":"paused"}]',3266599559,NULL,NULL);
INSERT INTO "entries" VALUES(48,15,0,1795642529332601988,'[{"job":{"created":{"message":{"n":6}}}},{"step":[0,{"started":{"attempt":1}}]}]',547437764,NULL,'["00000000-0000-4000-8000-000000000006",1,0,15,null,null,null,0,1795642529332582179]');
INSERT INTO "entries" VALUES(49,15,3,1795642529336541104,'[{"job":{"cancelled":{"reason":"by a call of the API"}}}]',1957504220,'[[2,1795642529336257721,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(51,16,0,1795642529337982563,'[{"job":{"created":{"message":{"n":7}}}},{"step":[0,{"started":{"attempt":1}}]}]',1771003611,NULL,'["00000000-0000-4000-8000-000000000007",1,0,16,null,null,null,0,1795642529337962494]');
INSERT INTO "entries" VALUES(52,16,2,1795642529342095828,'[{"step":[0,{"completed":{"n":7}}]},{"step":[1,{"started":{"attempt":1}}]}]',606619200,NULL,NULL);
INSERT INTO "entries" VALUES(54,16,5,1795642529364522658,'[{"step":[1,{"completed":{"n":7}}]},{"step":[2,{"started":{"attempt":1}}]}]',450774231,'[[4,1795642529348246923,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(55,16,8,1795642529389398720,'[{"step":[2,{"failed":{"reason":"the worker reported an error: not yet"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: not yet","step":2}}}]',1437207511,'[[7,1795642529369363017,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(56,16,10,1795642529417448947,'[{"job":{"retried":{"round":1}}},{"step":[2,{"started":{"attempt":2}}]}]',2232849055,NULL,NULL);
INSERT INTO "entries" VALUES(57,17,0,1795642529421686166,'[{"job":{"created":{"message":{"never":false},"deadline":2111002529421686166}}},{"step":[0,{"started":{"attempt":1,"deadline":2106682529421686166}}]},{"step":[1,"skipped"]}]',1202210709,NULL,'["00000000-0000-4000-8000-000000000008",3,0,17,null,null,null,0,1795642529421660148]');
INSERT INTO "entries" VALUES(59,17,4,1795642529447179409,'[{"step":[0,{"attempt_failed":{"attempt":1,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1978183456422433583}}]}]',3704408158,'[[3,1795642529428188464,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(60,18,0,1795642529447611103,'[{"job":{"created":{"message":{"for":"a person"}}}},{"step":[0,{"started":{"attempt":1}}]}]',767523400,NULL,'["00000000-0000-4000-8000-000000000009",4,0,18,null,null,null,0,1795642529447588910]');
INSERT INTO "entries" VALUES(61,19,0,1795642529460265557,'[{"job":{"created":{"message":{"n":12}}}},{"caller":{"joined":{"reply_to":"answers","bus":"amqp","correlation_id":"mine"}}},{"step":[0,{"started":{"attempt":1}}]}]',4154150565,NULL,'["00000000-0000-4000-8000-000000000012",1,0,19,null,null,null,0,1795642529460230715]');
INSERT INTO "entries" VALUES(63,20,0,1795642529516361223,'[{"job":{"created":{"message":{"n":13}}}},{"step":[0,{"started":{"attempt":1,"deadline":2106682529516361223}}]}]',384371088,NULL,'["00000000-0000-4000-8000-000000000013",5,0,20,null,null,null,0,1795642529516326982]');
INSERT INTO "entries" VALUES(64,21,0,1795642529522934657,'[{"job":{"created":{"message":{"n":14}}}},{"step":[0,{"started":{"attempt":1}}]}]',4124987116,NULL,'["00000000-0000-4000-8000-000000000014",6,0,21,null,null,null,0,1795642529522915088]');
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795642528950874977,'running',NULL,1,2380716478);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795642528960398221,'completed',1795642529023149409,0,2587938955);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795642529049794835,'failed',1795642529110645463,0,2861434282);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795642529116931919,'running',NULL,1,2676877815);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795642529121560693,'completed',1795642529242754592,0,3637901087);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795642529146337287,'completed',1795642529195106866,0,3765295616);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795642529146426640,'completed',1795642529221138842,0,625318698);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795642529244665863,'running',NULL,1,370332858);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795642529276217652,'completed',1795642529322453402,0,3841618787);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795642529276251873,'completed',1795642529322524438,0,1231398502);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795642529276254607,'running',NULL,1,458075712);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795642529276256470,'running',NULL,1,3873712491);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795642529276259544,'running',NULL,1,19639079);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795642529322824826,'paused',NULL,1,3651927327);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795642529332582179,'cancelled',1795642529336541104,0,3153806991);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795642529337962494,'running',NULL,1,31679009);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795642529421660148,'running',NULL,1,2731225389);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795642529447588910,'running',NULL,1,1284588347);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795642529460230715,'running',NULL,1,2154541417);
INSERT INTO "jobs" VALUES(20,X'00000000000040008000000000000013','timed',5,0,20,NULL,NULL,NULL,0,1795642529516326982,'running',NULL,1,1510296930);
INSERT INTO "jobs" VALUES(21,X'00000000000040008000000000000014','lent',6,0,21,NULL,NULL,NULL,0,1795642529522915088,'running',NULL,1,2219103021);
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE places(
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY(job, first)
) WITHOUT ROWID, STRICT;
INSERT INTO "places" VALUES(1,0,1);
INSERT INTO "places" VALUES(1,3,4);
INSERT INTO "places" VALUES(2,0,2);
INSERT INTO "places" VALUES(2,3,5);
INSERT INTO "places" VALUES(2,6,6);
INSERT INTO "places" VALUES(2,9,8);
INSERT INTO "places" VALUES(3,0,9);
INSERT INTO "places" VALUES(3,3,10);
INSERT INTO "places" VALUES(3,6,12);
INSERT INTO "places" VALUES(3,9,13);
INSERT INTO "places" VALUES(4,0,14);
INSERT INTO "places" VALUES(5,0,15);
INSERT INTO "places" VALUES(5,3,17);
INSERT INTO "places" VALUES(5,6,24);
INSERT INTO "places" VALUES(5,7,26);
INSERT INTO "places" VALUES(5,11,27);
INSERT INTO "places" VALUES(6,0,18);
INSERT INTO "places" VALUES(6,3,20);
INSERT INTO "places" VALUES(6,6,22);
INSERT INTO "places" VALUES(7,0,19);
INSERT INTO "places" VALUES(7,3,23);
INSERT INTO "places" VALUES(7,6,25);
INSERT INTO "places" VALUES(8,0,28);
INSERT INTO "places" VALUES(8,3,30);
INSERT INTO "places" VALUES(8,6,44);
INSERT INTO "places" VALUES(8,7,45);
INSERT INTO "places" VALUES(9,0,31);
INSERT INTO "places" VALUES(9,3,36);
INSERT INTO "places" VALUES(9,6,41);
INSERT INTO "places" VALUES(10,0,32);
INSERT INTO "places" VALUES(10,3,38);
INSERT INTO "places" VALUES(10,6,42);
INSERT INTO "places" VALUES(11,0,33);
INSERT INTO "places" VALUES(11,3,39);
INSERT INTO "places" VALUES(12,0,34);
INSERT INTO "places" VALUES(13,0,35);
INSERT INTO "places" VALUES(14,0,43);
INSERT INTO "places" VALUES(14,3,46);
INSERT INTO "places" VALUES(14,5,47);
INSERT INTO "places" VALUES(15,0,48);
INSERT INTO "places" VALUES(15,3,49);
INSERT INTO "places" VALUES(16,0,51);
INSERT INTO "places" VALUES(16,2,52);
INSERT INTO "places" VALUES(16,5,54);
INSERT INTO "places" VALUES(16,8,55);
INSERT INTO "places" VALUES(16,10,56);
INSERT INTO "places" VALUES(17,0,57);
INSERT INTO "places" VALUES(17,4,59);
INSERT INTO "places" VALUES(18,0,60);
INSERT INTO "places" VALUES(19,0,61);
INSERT INTO "places" VALUES(20,0,63);
INSERT INTO "places" VALUES(21,0,64);
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-25T21:35:28.950Z','2026-11-25T21:35:28.964Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-25T21:35:28.960Z','2026-11-25T21:35:29.023Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-25T21:35:29.049Z','2026-11-25T21:35:29.110Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-25T21:35:29.116Z','2026-11-25T21:35:29.116Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-25T21:35:29.322Z','2026-11-25T21:35:29.331Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-25T21:35:29.332Z','2026-11-25T21:35:29.336Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-25T21:35:29.337Z','2026-11-25T21:35:29.417Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-25T21:35:29.460Z','2026-11-25T21:35:29.460Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-25T21:35:29.121Z','2026-11-25T21:35:29.242Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-25T21:35:29.244Z','2026-11-25T21:35:29.273Z','COMPLETED','PENDING','');
CREATE TABLE "status_lent"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "held" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_lent" VALUES('00000000-0000-4000-8000-000000000014','running','2026-11-25T21:35:29.522Z','2026-11-25T21:35:29.522Z','PENDING');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-25T21:35:29.421Z','2026-11-25T21:35:29.421Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-25T21:35:29.447Z','2026-11-25T21:35:29.447Z','OPEN','');
CREATE TABLE "status_timed"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "slow" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_timed" VALUES('00000000-0000-4000-8000-000000000013','running','2026-11-25T21:35:29.516Z','2026-11-25T21:35:29.516Z','PENDING');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
CREATE UNIQUE INDEX "index job of chain" ON "status_chain"("job");
CREATE INDEX "index state of chain" ON "status_chain"("state");
CREATE INDEX "index a of chain" ON "status_chain"("a");
CREATE INDEX "index b of chain" ON "status_chain"("b");
CREATE INDEX "index c of chain" ON "status_chain"("c");
CREATE UNIQUE INDEX "index job of gather" ON "status_gather"("job");
CREATE INDEX "index state of gather" ON "status_gather"("state");
CREATE INDEX "index split of gather" ON "status_gather"("split");
CREATE INDEX "index items of gather" ON "status_gather"("items");
CREATE INDEX "index join of gather" ON "status_gather"("join");
CREATE UNIQUE INDEX "index job of lent" ON "status_lent"("job");
CREATE INDEX "index state of lent" ON "status_lent"("state");
CREATE INDEX "index held of lent" ON "status_lent"("held");
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
CREATE UNIQUE INDEX "index job of timed" ON "status_timed"("job");
CREATE INDEX "index state of timed" ON "status_timed"("state");
CREATE INDEX "index slow of timed" ON "status_timed"("slow");
DELETE FROM "sqlite_sequence";
COMMIT;
