PRAGMA application_id = 1466322279;
PRAGMA user_version = 7;
BEGIN TRANSACTION;
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "confirmed" VALUES(6,'[[1,[[5,1795373648879654436,[{"step":[1,"confirmed"]}]]]],[2,[[5,1795373648880857493,[{"step":[1,"confirmed"]}]]]]]',2066557797);
INSERT INTO "confirmed" VALUES(18,'[[4,[[2,1795373649188759352,[{"step":[0,"confirmed"]}]]]],[5,[[2,1795373649199005510,[{"step":[0,"confirmed"]}]]]]]',828419342);
INSERT INTO "confirmed" VALUES(38,'[[9,[[2,1795373649522498947,[{"step":[0,"confirmed"]}]]]],[10,[[2,1795373649522530004,[{"step":[0,"confirmed"]}]]]],[11,[[2,1795373649526569177,[{"step":[0,"confirmed"]}]]]],[12,[[2,1795373649526601170,[{"step":[0,"confirmed"]}]]]],[13,[[2,1795373649526608692,[{"step":[0,"confirmed"]}]]]]]',471399137);
INSERT INTO "confirmed" VALUES(42,'[[9,[[5,1795373649552061209,[{"step":[1,"confirmed"]}]]]],[10,[[5,1795373649552101496,[{"step":[1,"confirmed"]}]]]],[11,[[5,1795373649552105708,[{"step":[1,"confirmed"]}]]]]]',2209865359);
INSERT INTO "confirmed" VALUES(61,'[[16,[[13,1795373649748191933,[{"step":[2,"confirmed"]}]]]]]',2613149368);
INSERT INTO "confirmed" VALUES(65,'[[19,[[3,1795373649869159278,[{"step":[0,"confirmed"]}]]]]]',3752775563);
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO "derived" VALUES(65);
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
, confirms TEXT, origin TEXT) STRICT;
INSERT INTO "entries" VALUES(1,1,0,1795373648835868046,'[{"job":{"created":{"message":{"n":1,"large":12345678901234567890}}}},{"step":[0,{"started":{"attempt":1}}]}]',15133408,NULL,'["00000000-0000-4000-8000-000000000001",1,0,1,null,null,null,0,1795373648835823836]');
INSERT INTO "entries" VALUES(2,2,0,1795373648867015777,'[{"job":{"created":{"message":{"n":2}}}},{"step":[0,{"started":{"attempt":1}}]}]',1305218558,NULL,'["00000000-0000-4000-8000-000000000002",1,0,2,null,null,null,0,1795373648866871981]');
INSERT INTO "entries" VALUES(4,1,3,1795373648869062794,'[{"step":[0,{"completed":{"n":1.1}}]},{"step":[1,{"started":{"attempt":1}}]}]',915410362,'[[2,1795373648846742882,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(5,2,3,1795373648874875785,'[{"step":[0,{"completed":{"n":2}}]},{"step":[1,{"started":{"attempt":1}}]}]',345558958,'[[2,1795373648872288691,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(7,2,6,1795373648905593330,'[{"step":[1,{"completed":{"n":2}}]},{"step":[2,{"started":{"attempt":1}}]}]',3581423773,'[[5,1795373648880857493,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(9,2,9,1795373648967345063,'[{"step":[2,{"completed":{"sum":6}}]},{"job":"completed"}]',801565679,'[[8,1795373648931872127,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(10,3,0,1795373649018802244,'[{"job":{"created":{"message":{"n":3}}}},{"step":[0,{"started":{"attempt":1}}]}]',3917932530,NULL,'["00000000-0000-4000-8000-000000000003",1,0,3,null,null,null,0,1795373649018761970]');
INSERT INTO "entries" VALUES(12,3,3,1795373649046153944,'[{"step":[0,{"completed":{"n":3}}]},{"step":[1,{"started":{"attempt":1}}]}]',2147256638,'[[2,1795373649023213544,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(14,3,6,1795373649071903795,'[{"step":[1,{"completed":{"n":3}}]},{"step":[2,{"started":{"attempt":1}}]}]',240465024,'[[5,1795373649050066775,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(15,3,9,1795373649095630121,'[{"step":[2,{"failed":{"reason":"the worker reported an error: no"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: no","step":2}}}]',1961639515,'[[8,1795373649075903145,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(16,4,0,1795373649135205678,'[{"job":{"created":{"message":{"n":4}}}},{"step":[0,{"started":{"attempt":1}}]}]',524885579,NULL,'["00000000-0000-4000-8000-000000000004",1,0,4,null,null,null,0,1795373649135167045]');
INSERT INTO "entries" VALUES(17,5,0,1795373649151421130,'[{"job":{"created":{"message":{}}}},{"step":[0,{"started":{"attempt":1}}]}]',1000297453,NULL,'["00000000-0000-4000-8000-000000000011",2,0,5,null,null,null,0,1795373649151380753]');
INSERT INTO "entries" VALUES(19,5,3,1795373649325961111,'[{"step":[0,{"completed":{"sections":["x", "y"],"title":"t"}}]},{"fan_out":[1,{"started":{"items":2}}]},{"fan_out":[1,{"children_started":{"from":0,"count":2}}]}]',1952136862,'[[2,1795373649199005510,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(20,6,0,1795373649334100842,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3050509409,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000000",2,1,5,5,1,0,1,1795373649334019882]');
INSERT INTO "entries" VALUES(21,7,0,1795373649334209729,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3834429302,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000001",2,1,5,5,1,1,1,1795373649334052496]');
INSERT INTO "entries" VALUES(22,6,3,1795373649367481834,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',2657547929,'[[2,1795373649365329180,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(24,6,6,1795373649389942712,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1786907699,'[[5,1795373649386747659,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(25,7,3,1795373649391634578,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1961906916,'[[2,1795373649365245884,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(26,5,6,1795373649393068552,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 1, "good": true}]}}]}]',2961897458,NULL,NULL);
INSERT INTO "entries" VALUES(28,7,6,1795373649448554745,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',2644146525,'[[5,1795373649395121267,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(29,5,7,1795373649460422846,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 1, "good": true}]}}]},{"fan_out":[1,"completed"]},{"step":[2,{"started":{"attempt":1}}]}]',385842754,NULL,NULL);
INSERT INTO "entries" VALUES(30,5,11,1795373649482239047,'[{"step":[2,{"completed":{"kg":2}}]},{"job":"completed"}]',614338524,'[[10,1795373649469159470,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(31,8,0,1795373649507794750,'[{"job":{"created":{"message":{"from":"a client"}}}},{"step":[0,{"started":{"attempt":1}}]}]',1127049124,NULL,'["00000000-0000-4000-8000-000000000010",2,0,8,null,null,null,0,1795373649507706253]');
INSERT INTO "entries" VALUES(32,8,3,1795373649516368453,'[{"step":[0,{"completed":{"sections":[1, 2, 3, 4, 5],"title":"t"}}]},{"fan_out":[1,{"started":{"items":5}}]},{"fan_out":[1,{"children_started":{"from":0,"count":5}}]}]',3792568502,'[[2,1795373649515271062,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(33,9,0,1795373649518474218,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2125628585,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000000",2,1,8,8,1,0,1,1795373649518157259]');
INSERT INTO "entries" VALUES(34,10,0,1795373649518537588,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1304545018,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000001",2,1,8,8,1,1,1,1795373649518183881]');
INSERT INTO "entries" VALUES(35,11,0,1795373649518548829,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2773310359,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000002",2,1,8,8,1,2,1,1795373649518194490]');
INSERT INTO "entries" VALUES(36,12,0,1795373649518560571,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',75796505,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000003",2,1,8,8,1,3,1,1795373649518206947]');
INSERT INTO "entries" VALUES(37,13,0,1795373649518569842,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3729248274,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000004",2,1,8,8,1,4,1,1795373649518219093]');
INSERT INTO "entries" VALUES(39,9,3,1795373649542446064,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3375351180,'[[2,1795373649522498947,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(40,10,3,1795373649543053024,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',784554160,'[[2,1795373649522530004,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(41,11,3,1795373649545843891,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3522429752,'[[2,1795373649526569177,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(43,9,6,1795373649573621323,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',573498386,'[[5,1795373649552061209,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(44,14,0,1795373649575490713,'[{"job":{"created":{"message":{"n":5}}}},{"step":[0,{"started":{"attempt":1}}]}]',3983226736,NULL,'["00000000-0000-4000-8000-000000000005",1,0,14,null,null,null,0,1795373649574574579]');
INSERT INTO "entries" VALUES(45,10,6,1795373649576125577,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',1822652699,'[[5,1795373649552101496,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(46,8,6,1795373649577630577,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 2, "good": true}]}}]}]',1230333954,NULL,NULL);
INSERT INTO "entries" VALUES(47,8,7,1795373649579351989,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 2, "good": true}]}}]}]',413317573,NULL,NULL);
INSERT INTO "entries" VALUES(48,14,3,1795373649582533946,'[{"job":"paused"}]',1837574695,'[[2,1795373649580781154,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(49,14,4,1795373649583344220,'[{"step":[0,{"completed":{"n":5}}]}]',1874302990,NULL,NULL);
INSERT INTO "entries" VALUES(50,15,0,1795373649585929274,'[{"job":{"created":{"message":{"n":6}}}},{"step":[0,{"started":{"attempt":1}}]}]',1881609871,NULL,'["00000000-0000-4000-8000-000000000006",1,0,15,null,null,null,0,1795373649585840233]');
INSERT INTO "entries" VALUES(51,15,3,1795373649595202664,'[{"job":{"cancelled":{"reason":"by a call of the API"}}}]',1638530016,'[[2,1795373649594808813,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(52,16,0,1795373649597651086,'[{"job":{"created":{"message":{"n":7}}}},{"step":[0,{"started":{"attempt":1}}]}]',1397708408,NULL,'["00000000-0000-4000-8000-000000000007",1,0,16,null,null,null,0,1795373649597618486]');
INSERT INTO "entries" VALUES(54,16,3,1795373649604531363,'[{"step":[0,{"completed":{"n":7}}]},{"step":[1,{"started":{"attempt":1}}]}]',1563331091,'[[2,1795373649601007531,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(56,16,6,1795373649628493843,'[{"step":[1,{"completed":{"n":7}}]},{"step":[2,{"started":{"attempt":1}}]}]',372552537,'[[5,1795373649607448123,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(58,16,9,1795373649670127409,'[{"step":[2,{"failed":{"reason":"the worker reported an error: not yet"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: not yet","step":2}}}]',1322938969,'[[8,1795373649633961593,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(59,16,11,1795373649697565658,'[{"job":{"retried":{"round":1}}},{"step":[2,{"started":{"attempt":2}}]}]',1550607923,NULL,NULL);
INSERT INTO "entries" VALUES(60,17,0,1795373649743515483,'[{"job":{"created":{"message":{"never":false},"deadline":2110733649743515483}}},{"step":[0,{"started":{"attempt":1,"deadline":2106413649743515483}}]},{"step":[1,"skipped"]}]',2034463542,NULL,'["00000000-0000-4000-8000-000000000008",3,0,17,null,null,null,0,1795373649743163332]');
INSERT INTO "entries" VALUES(62,17,3,1795373649799681049,'[{"step":[0,{"attempt_failed":{"attempt":1,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1977914576774935223}}]}]',1441970536,NULL,NULL);
INSERT INTO "entries" VALUES(63,18,0,1795373649802049708,'[{"job":{"created":{"message":{"for":"a person"}}}},{"step":[0,{"started":{"attempt":1}}]}]',4110928989,NULL,'["00000000-0000-4000-8000-000000000009",4,0,18,null,null,null,0,1795373649800925209]');
INSERT INTO "entries" VALUES(64,19,0,1795373649862531499,'[{"job":{"created":{"message":{"n":12}}}},{"caller":{"joined":{"reply_to":"answers","correlation_id":"mine"}}},{"step":[0,{"started":{"attempt":1}}]}]',1005422088,NULL,'["00000000-0000-4000-8000-000000000012",1,0,19,null,null,null,0,1795373649862476862]');
INSERT INTO "entries" VALUES(66,1,5,1795373648879654436,'[{"step":[1,"confirmed"]}]',3688498567,NULL,NULL);
INSERT INTO "entries" VALUES(67,4,2,1795373649188759352,'[{"step":[0,"confirmed"]}]',227683542,NULL,NULL);
INSERT INTO "entries" VALUES(68,11,5,1795373649552105708,'[{"step":[1,"confirmed"]}]',753947499,NULL,NULL);
INSERT INTO "entries" VALUES(69,12,2,1795373649526601170,'[{"step":[0,"confirmed"]}]',2898493226,NULL,NULL);
INSERT INTO "entries" VALUES(70,13,2,1795373649526608692,'[{"step":[0,"confirmed"]}]',3616309177,NULL,NULL);
INSERT INTO "entries" VALUES(71,16,13,1795373649748191933,'[{"step":[2,"confirmed"]}]',1951090826,NULL,NULL);
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
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795373648835823836,'running',NULL,1,3344971426);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795373648866871981,'completed',1795373648967345063,0,129274269);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795373649018761970,'failed',1795373649095630121,0,806397495);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795373649135167045,'running',NULL,1,1022236790);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795373649151380753,'completed',1795373649482239047,0,3505330096);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795373649334019882,'completed',1795373649389942712,0,4275945873);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795373649334052496,'completed',1795373649448554745,0,2218021792);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795373649507706253,'running',NULL,1,3691204715);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795373649518157259,'completed',1795373649573621323,0,3402770132);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795373649518183881,'completed',1795373649576125577,0,190173734);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795373649518194490,'running',NULL,1,609009586);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795373649518206947,'running',NULL,1,403158206);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795373649518219093,'running',NULL,1,514750499);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795373649574574579,'paused',NULL,1,1709590526);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795373649585840233,'cancelled',1795373649595202664,0,2847955952);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795373649597618486,'running',NULL,1,3691002036);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795373649743163332,'running',NULL,1,1334090234);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795373649800925209,'running',NULL,1,2263893146);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795373649862476862,'running',NULL,1,3325992540);
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
INSERT INTO "places" VALUES(2,6,7);
INSERT INTO "places" VALUES(2,9,9);
INSERT INTO "places" VALUES(3,0,10);
INSERT INTO "places" VALUES(3,3,12);
INSERT INTO "places" VALUES(3,6,14);
INSERT INTO "places" VALUES(3,9,15);
INSERT INTO "places" VALUES(4,0,16);
INSERT INTO "places" VALUES(5,0,17);
INSERT INTO "places" VALUES(5,3,19);
INSERT INTO "places" VALUES(5,6,26);
INSERT INTO "places" VALUES(5,7,29);
INSERT INTO "places" VALUES(5,11,30);
INSERT INTO "places" VALUES(6,0,20);
INSERT INTO "places" VALUES(6,3,22);
INSERT INTO "places" VALUES(6,6,24);
INSERT INTO "places" VALUES(7,0,21);
INSERT INTO "places" VALUES(7,3,25);
INSERT INTO "places" VALUES(7,6,28);
INSERT INTO "places" VALUES(8,0,31);
INSERT INTO "places" VALUES(8,3,32);
INSERT INTO "places" VALUES(8,6,46);
INSERT INTO "places" VALUES(8,7,47);
INSERT INTO "places" VALUES(9,0,33);
INSERT INTO "places" VALUES(9,3,39);
INSERT INTO "places" VALUES(9,6,43);
INSERT INTO "places" VALUES(10,0,34);
INSERT INTO "places" VALUES(10,3,40);
INSERT INTO "places" VALUES(10,6,45);
INSERT INTO "places" VALUES(11,0,35);
INSERT INTO "places" VALUES(11,3,41);
INSERT INTO "places" VALUES(12,0,36);
INSERT INTO "places" VALUES(13,0,37);
INSERT INTO "places" VALUES(14,0,44);
INSERT INTO "places" VALUES(14,3,48);
INSERT INTO "places" VALUES(14,4,49);
INSERT INTO "places" VALUES(15,0,50);
INSERT INTO "places" VALUES(15,3,51);
INSERT INTO "places" VALUES(16,0,52);
INSERT INTO "places" VALUES(16,3,54);
INSERT INTO "places" VALUES(16,6,56);
INSERT INTO "places" VALUES(16,9,58);
INSERT INTO "places" VALUES(16,11,59);
INSERT INTO "places" VALUES(17,0,60);
INSERT INTO "places" VALUES(17,3,62);
INSERT INTO "places" VALUES(18,0,63);
INSERT INTO "places" VALUES(19,0,64);
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-22T18:54:08.835Z','2026-11-22T18:54:08.869Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-22T18:54:08.866Z','2026-11-22T18:54:08.967Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-22T18:54:09.018Z','2026-11-22T18:54:09.095Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-22T18:54:09.135Z','2026-11-22T18:54:09.135Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-22T18:54:09.574Z','2026-11-22T18:54:09.583Z','COMPLETED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-22T18:54:09.585Z','2026-11-22T18:54:09.595Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-22T18:54:09.597Z','2026-11-22T18:54:09.697Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-22T18:54:09.862Z','2026-11-22T18:54:09.862Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-22T18:54:09.151Z','2026-11-22T18:54:09.482Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-22T18:54:09.507Z','2026-11-22T18:54:09.516Z','COMPLETED','PENDING','');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-22T18:54:09.743Z','2026-11-22T18:54:09.743Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-22T18:54:09.800Z','2026-11-22T18:54:09.802Z','OPEN','');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
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
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
DELETE FROM "sqlite_sequence";
COMMIT;
